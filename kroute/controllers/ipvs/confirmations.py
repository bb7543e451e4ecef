"""Connects to the real servers that the counters say have failed.

One client can forge what is counted: it sends SYNs that no real server answers. It cannot forge whether a connection of
this node's own is accepted.
"""

from collections.abc import Mapping

from kroute.controllers.ipvs.ejections import POLL
from kroute.http.probes import Probes
from kroute.kernel.ipvs.objects import RealServerKey
from kroute.model.probes import Probe, ProbeKind, ProbeSettings

CONNECTS_WITHIN = 1.5
"""Seconds for a connection: a SYN that is lost is sent again after one, and a look later the result is known."""
MOST_A_SECOND = 50
"""Connections that begin in a second, to the real servers of all Services together."""


class Confirmations(Probes):
    """Connections to nominated real servers: one to each, for all virtual servers that have nominated it."""

    def __init__(self) -> None:
        settings = ProbeSettings(interval=POLL, timeout=CONNECTS_WITHIN, failures=1, successes=1)
        super().__init__(settings, lambda: None, MOST_A_SECOND)

    def nominate(self, nominated: Mapping[RealServerKey, set[str]]) -> None:
        """Connect to these real servers, each for Services of these namespaces, and to no others."""
        wanted = {_probe(server): frozenset(namespaces) for server, namespaces in nominated.items()}
        self.want({**dict.fromkeys(self.wanted - wanted.keys(), frozenset()), **wanted})

    def accepts(self, server: RealServerKey) -> bool | None:
        """Whether the nominated real server accepts; None: no connection has ended yet, or none could be made."""
        return self.passes(_probe(server))


def _probe(server: RealServerKey) -> Probe:
    return Probe(ProbeKind.CONNECT, *server)
