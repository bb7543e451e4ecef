"""The sysctls of the connection tracker, where the settings name them.

The rules are those of kube-proxy (pkg/proxy/conntrack, `setSysctls`): the limit is never lowered, and the hash table
has a bucket for every four connections. In a network namespace that is not the initial one, the limit and the table
can only be read; time-outs belong to each namespace.
"""

from collections.abc import Iterator

from kroute.controllers.ipvs.sysctls import Row, always
from kroute.settings import ConntrackSettings

MOST_CONNECTIONS = 1 << 20
"""The limit by processors is no more than this, however many there are."""

CONNECTIONS_A_BUCKET = 4

_PREFIX = "net.netfilter.nf_conntrack_"
_NAMES = {
    "tcp_timeout_established": "for how long an idle TCP connection is tracked",
    "tcp_timeout_close_wait": "for how long a half-closed TCP connection is tracked",
    "udp_timeout": "for how long UDP without an answer is tracked",
    "udp_timeout_stream": "for how long UDP with answers is tracked",
}
"""The settings that are sysctls of the same name, with their meanings."""


def most_connections(settings: ConntrackSettings, processors: int) -> int:
    """How many connections the settings want to be tracked on a node with so many processors; 0: as many as now."""
    if not settings.max_per_core:
        return 0
    scaled = settings.max_per_core * processors
    return MOST_CONNECTIONS if scaled > MOST_CONNECTIONS else max(scaled, settings.min)


def conntrack_rows(settings: ConntrackSettings, processors: int) -> Iterator[Row]:
    """The rows for the settings that are not 0."""
    absent = "load nf_conntrack"
    if most := most_connections(settings, processors):
        meaning = "how many connections can be tracked; only the initial network namespace can set it"
        limit = Row(f"{_PREFIX}max", str(most), always, meaning, absent=absent, at_least=True)
        buckets = str(most // CONNECTIONS_A_BUCKET)
        yield limit
        yield Row(f"{_PREFIX}buckets", buckets, always, "the table of these", at_least=True, needs=limit.name)
    for name, meaning in _NAMES.items():
        if seconds := getattr(settings, name):
            yield Row(_PREFIX + name, str(seconds), always, meaning, absent=absent)
    if settings.tcp_be_liberal:
        meaning = "TCP packets outside the window are not invalid"
        yield Row(f"{_PREFIX}tcp_be_liberal", "1", always, meaning, absent=absent)
