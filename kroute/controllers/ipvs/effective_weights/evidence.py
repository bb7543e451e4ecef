"""What the kernel's counters say of real servers that do not answer new connections over TCP.

The counters of a real server are new connections, and packets and bytes in both directions (ip_vs_core.c,
ip_vs_conn_stats, ip_vs_in_stats, ip_vs_out_stats). A SYN that is sent again is a packet and no new connection. Whoever
accepts a connection answers with a SYN-ACK, which has at least the option MSS: it is longer than the headers of IP and
TCP alone. So among the packets of one that answers, a new connection shows:

- No packet comes back: silence.
- All packets are as long as the two headers alone: resets. No SYN-ACK is among them.
- All packets that come in are equally long, as SYNs are, and all that come out are longer by the headers of IP and
  ICMP: errors of ICMP, which quote a SYN in full, as Linux does for a host that it cannot reach.

One that has other connections with data answers in none of these ways, though it may refuse new ones. It is not found.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from kroute.kernel.ipvs.client import RealServerKey, RealServerTraffic, Traffic

LEAST_CONNECTIONS = 3
"""New connections without an answer that are enough evidence. A single one may be a client that nobody may answer."""


class Fault(StrEnum):
    """How a real server does not answer."""

    SILENCE = "were not answered"
    REFUSAL = "were refused"
    UNREACHABLE = "ended with errors of ICMP: it cannot be reached"


class _Sizes(msgspec.Struct, frozen=True):
    """Bytes of the headers of IP and TCP without options, of IP and ICMP, and the most of options of TCP."""

    bare: int
    icmp: int
    options: int = 40


_SIZES = {False: _Sizes(40, 28), True: _Sizes(60, 48)}
"""By whether it is IPv6."""


class Finding(msgspec.Struct, frozen=True):
    """Why a real server is taken to have failed."""

    fault: Fault
    connections: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.connections} new connections within {self.seconds:.0f} s {self.fault}"


class _Suspicion(NamedTuple):
    """When the first connection without an answer was seen, and the counters before it."""

    since: float
    before: RealServerTraffic


class _Held(NamedTuple):
    """The counters before the first connection without an answer, and how it failed when it was held."""

    before: RealServerTraffic
    fault: Fault | None


def passed_between(before: RealServerTraffic, after: RealServerTraffic) -> Traffic | None:
    """The traffic between two looks; None if somebody has set the counters to zero."""
    passed = Traffic(*(new - old for old, new in zip(before.traffic, after.traffic, strict=True)))
    return passed if min(passed) >= 0 else None


def fault_between(
    before: RealServerTraffic, after: RealServerTraffic, *, is_ipv6: bool, are_open: bool = True
) -> Fault | None:
    """How a real server has not answered between two looks; None if it has, or if the counters do not say.

    `are_open`: errors of ICMP count only while the new connections are still active, as such are for a minute.
    """
    passed, sizes = passed_between(before, after), _SIZES[is_ipv6]
    if passed is None:
        return None
    if not passed.packets_out:
        return Fault.SILENCE
    if passed.bytes_out == sizes.bare * passed.packets_out:
        return Fault.REFUSAL
    is_open = not are_open or after.active - before.active >= passed.connections
    return Fault.UNREACHABLE if is_open and _is_icmp(passed, sizes) else None


def _is_icmp(passed: Traffic, sizes: _Sizes) -> bool:
    """Whether all packets in may be SYNs, and all packets out errors that quote SYNs: those before them, too."""
    if not passed.packets_in or passed.bytes_in % passed.packets_in:
        return False
    syn = passed.bytes_in // passed.packets_in
    fits = sizes.bare <= syn <= sizes.bare + sizes.options and syn % 4 == 0
    return fits and passed.bytes_out == (syn + sizes.icmp) * passed.packets_out


class Evidence:
    """What has been seen of the real servers of one virtual server. Times are seconds on the caller's clock."""

    def __init__(self, *, is_ipv6: bool) -> None:
        self._is_ipv6 = is_ipv6
        self._seen: dict[RealServerKey, RealServerTraffic] = {}
        self._suspicions: dict[RealServerKey, _Suspicion] = {}
        self._accepted: dict[RealServerKey, float] = {}
        self._held: dict[RealServerKey, _Held] = {}

    def take(self, traffic: Mapping[RealServerKey, RealServerTraffic], now: float) -> None:
        """Take the counters of now. Real servers that are not among them are forgotten."""
        for known in (self._seen, self._suspicions, self._accepted, self._held):
            for gone in [it for it in known if it not in traffic]:
                del known[gone]
        for server, after in traffic.items():
            if (before := self._seen.get(server)) is not None:
                self._compare(server, before, after, now)
            self._seen[server] = after

    def hold(self, server: RealServerKey) -> None:
        """Note that this one of those that fail gets no new connections from now on."""
        before = self._suspicions.pop(server).before
        self._held[server] = _Held(before, fault_between(before, self._seen[server], is_ipv6=self._is_ipv6))

    def forget(self, server: RealServerKey) -> None:
        """Suspect the real server of nothing any more."""
        self._suspicions.pop(server, None)
        self._held.pop(server, None)

    def accepted_at(self, server: RealServerKey) -> float | None:
        """When the real server was last seen to accept a new connection."""
        return self._accepted.get(server)

    def has_answered(self, server: RealServerKey) -> bool:
        """Whether a real server that is held has answered since it was first suspected; errors of ICMP come late.

        Of one that could not be reached, errors that quote packets of older connections look like answers.
        """
        if server not in self._held or server not in self._seen:
            return False
        (before, was), after = self._held[server], self._seen[server]
        passed = passed_between(before, after)
        fault = fault_between(before, after, is_ipv6=self._is_ipv6, are_open=False)
        return passed is not None and fault is None and was is not Fault.UNREACHABLE

    def failing(self, candidates: Collection[RealServerKey], after: float, now: float) -> dict[RealServerKey, Finding]:
        """Those candidates that have not answered for `after` seconds, the longest first.

        None of them if fewer others have accepted connections meanwhile: then it may be the clients' fault, or that of
        a network policy, and all real servers are alike.
        """
        suspects = {it: self._suspicions[it] for it in candidates if it in self._suspicions}
        found: dict[RealServerKey, Finding] = {}
        for server, (since, before) in sorted(suspects.items(), key=lambda it: it[1].since):
            fault = fault_between(before, self._seen[server], is_ipv6=self._is_ipv6)
            connections = self._seen[server].traffic.connections - before.traffic.connections
            others = sum(since <= self._accepted.get(it, 0.0) for it in candidates if it not in suspects)
            if fault and now - since >= after and connections >= LEAST_CONNECTIONS and others >= len(suspects):
                found[server] = Finding(fault, connections, now - since)
        return found

    def _compare(self, server: RealServerKey, before: RealServerTraffic, after: RealServerTraffic, now: float) -> None:
        passed = passed_between(before, after)
        suspicion = self._suspicions.get(server)
        if passed is None:
            self._suspicions.pop(server, None)
            return
        since = suspicion.before if suspicion is not None else before
        fault = fault_between(since, after, is_ipv6=self._is_ipv6)
        if fault is None:
            self._suspicions.pop(server, None)
            if passed.connections or suspicion is not None:
                self._accepted[server] = now
        elif suspicion is None and passed.connections:
            self._suspicions[server] = _Suspicion(now, before)
