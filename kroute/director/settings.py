"""The settings of `kroute director`, checked and typed."""

import re

import msgspec

from kroute.model.probes import ProbeSettings
from kroute.settings import Settings

_LEASE = re.compile(
    r"(?P<namespace>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)/(?P<name>[a-z0-9][-.a-z0-9]{0,251}[a-z0-9]|[a-z0-9])"
)
_REQUIREMENT = re.compile(
    r"\s*!?[A-Za-z0-9][-A-Za-z0-9_./]*\s*((==?|!=)\s*[-A-Za-z0-9_.]*|\s(in|notin)\s*\([^()]*\))?\s*"
)


class LeaseSettings(msgspec.Struct, frozen=True):
    """The Lease by which directors agree on the active one. Times are in seconds, with client-go's names and meanings.

    `duration`: how long others wait after the last renewal that they saw. `renew_deadline`: after how long a renewal
    has failed. `retry_period`: the pause between two attempts.
    """

    namespace: str = "kube-system"
    name: str = "kroute-director"
    duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def attempt_timeout(self) -> float:
        """Seconds for one request: two attempts fit into `renew_deadline`."""
        return max(self.renew_deadline / 2, 0.1)


class DirectorSettings(msgspec.Struct, frozen=True):
    """How this director runs.

    `common` are the settings that it shares with the agent; its node name is the director's name. `selector` is a
    label selector of the API; if empty, every Service with external IPs is served. If `sync_interface` is empty,
    connections are not synchronized. Otherwise the synchronization messages carry `sync_id` (1 to 255).
    """

    common: Settings
    vip_interface: str
    selector: str = ""
    sync_interface: str = ""
    sync_id: int = 1
    lease: LeaseSettings = LeaseSettings()
    probes: ProbeSettings = ProbeSettings()


DEFAULTS = DirectorSettings(Settings(node_name="", scheduler="wrr"), vip_interface="")
"""The defaults. The scheduler uses weights, because the real servers are nodes, which have weights. The identity and
the interface have no default here."""


def parse_lease(text: str) -> tuple[str, str]:
    """Read `NAMESPACE/NAME`."""
    match = _LEASE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not the name of a Lease: write NAMESPACE/NAME, for example kube-system/director")
    return match["namespace"], match["name"]


def parse_selector(text: str) -> str:
    """Check the form of a label selector, whose requirements hold together. The API server interprets it."""
    requirements = re.split(r",(?![^(]*\))", text) if text else []
    for requirement in requirements:
        if not _REQUIREMENT.fullmatch(requirement):
            raise ValueError(f"{requirement!r} is not a label selector: write app=web, tier!=test, or zone in (a,b)")
    return ",".join(dict.fromkeys(requirements))


def problem_with(lease: LeaseSettings) -> str | None:
    """The error in the Lease's times, or None if they fit together. client-go has the same conditions."""
    if lease.duration < 1:
        return "--lease-duration must be at least 1s"
    if not lease.duration > lease.renew_deadline:
        return "--lease-renew-deadline must be less than --lease-duration"
    if not lease.renew_deadline > 1.2 * lease.retry_period > 0:
        return "--lease-retry-period must be more than 0s, and 1.2 times it less than --lease-renew-deadline"
    return None


def problem_with_ranges(allowed: tuple[str, ...], *, is_strict: bool) -> str | None:
    """What is wrong with the networks of external IPs; None if they say which addresses a director may take.

    Any user who may write a Service could otherwise have a director take an address from the network that it is in.
    """
    if allowed or is_strict:
        return None
    return (
        "a director takes external IPs only from networks that it is given: --external-ip-range, for example "
        "--external-ip-range 203.0.113.0/24,2001:db8::/64; with --strict-external-ips alone it takes none"
    )
