"""Ejections: real servers that do not answer new connections have weight 0 on this node, until they are tried again.

The counters can be forged by one client, so they only nominate: a real server is ejected if it does not accept a
connection of this node's own either.

At most a third of a virtual server's real servers are ejected. One that fails again in its trial is held for twice as
long, up to 16 times as long as the Service asks. One that answers on a connection that it still has is tried at once,
unless it has failed a trial.

Nothing is recorded for a restart: a real server that has weight 0 in the kernel, and another one in the plan, was
ejected before, and is held again.

Evidence is what the kernel's counters say of real servers that do not answer new connections over TCP.

The counters of a real server are new connections, and packets and bytes in both directions (ip_vs_core.c,
ip_vs_conn_stats, ip_vs_in_stats, ip_vs_out_stats). A SYN that is sent again is a packet and no new connection. A real
server that accepts a connection answers with a SYN-ACK, which has at least the option MSS: it is longer than the
headers of IP and TCP alone. So one of three signs says that new connections are not answered:

- No packet comes back: silence.
- All packets are as long as the two headers alone: resets. No SYN-ACK is among them.
- All packets that come in are equally long, as SYNs are, and all that come out are longer by the headers of IP and
  ICMP: errors of ICMP, which quote a SYN in full, as Linux does for a host that it cannot reach.

A real server that has other connections with data shows none of these signs, though it may refuse new connections. It
is not found.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from kroute.base.wording import host_port
from kroute.kernel.ipvs.objects import RealServerKey, RealServerTraffic, Traffic
from kroute.model.plan import Ejection, VirtualServer, VirtualServerKey

POLL = 2.0
"""Seconds between two looks at the counters, which the kernel sums up as often (ip_vs_est.c)."""
POLL_EACH = 0.01
"""The same for each virtual server that is looked at: with more than 200 of them, looks become rarer."""
POLLED_TOGETHER = 16
"""Virtual servers that are polled in one pass. It is small so that changes need not wait for a poll of all."""
ONE_IN = 3
"""At most one in so many real servers is ejected, and none where there are fewer."""
LONGEST_HOLD = 16
"""A real server that fails again and again is held for so many times the Service's time at most."""
Accepts = Callable[[RealServerKey], bool | None]
"""Whether a real server accepts a connection of this node's own; None: that is not known."""
FOUND = "an earlier run of kroute ejected it"
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


class FaultReport(msgspec.Struct, frozen=True):
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
    """The traffic between two looks; None if another program has set the counters to zero."""
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
            for gone in [server for server in known if server not in traffic]:
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

    def failing(
        self, candidates: Collection[RealServerKey], after: float, now: float
    ) -> dict[RealServerKey, FaultReport]:
        """Those candidates that have not answered for `after` seconds, the longest first.

        None of them if fewer others have accepted connections meanwhile: then it may be the clients' fault, or that of
        a network policy, and all real servers are alike.
        """
        suspects = {server: self._suspicions[server] for server in candidates if server in self._suspicions}
        found: dict[RealServerKey, FaultReport] = {}
        for server, (since, before) in sorted(suspects.items(), key=lambda suspect: suspect[1].since):
            fault = fault_between(before, self._seen[server], is_ipv6=self._is_ipv6)
            connections = self._seen[server].traffic.connections - before.traffic.connections
            others = sum(since <= self._accepted.get(server, 0.0) for server in candidates if server not in suspects)
            if fault and now - since >= after and connections >= LEAST_CONNECTIONS and others >= len(suspects):
                found[server] = FaultReport(fault, connections, now - since)
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


class Ejected(msgspec.Struct, frozen=True):
    """A real server that is out: since when, until when, for how many seconds it is held, and why."""

    since: float
    until: float
    hold: float
    why: str


class Happened(NamedTuple):
    """A real server was ejected or is tried again. `why` is a clause without a full stop."""

    key: VirtualServerKey
    server: RealServerKey
    is_out: bool
    why: str
    hold: float


class _Trial(NamedTuple):
    """A real server that is back: since when, and for how long it was held."""

    since: float
    hold: float


class _Watched:
    """A virtual server whose real servers may be ejected."""

    def __init__(self, desired: VirtualServer) -> None:
        self.key = desired.key
        self.evidence = Evidence(is_ipv6=":" in desired.key.address)
        self.ejection = desired.ejection or Ejection()
        self.candidates: frozenset[RealServerKey] = frozenset()
        self.out: dict[RealServerKey, Ejected] = {}
        self.trials: dict[RealServerKey, _Trial] = {}
        self.nominated: set[RealServerKey] = set()

    def want(self, desired: VirtualServer) -> None:
        """Take a new plan. Those that are ejected beyond what it allows are no longer out, the first ones first."""
        self.ejection = desired.ejection or Ejection()
        self.candidates = frozenset((real.address, real.port) for real in desired.real_servers if real.weight)
        for known in (self.out, self.trials):
            for gone in [server for server in known if server not in self.candidates]:
                del known[gone]
        self.nominated &= self.candidates if self.room > 0 else set()
        for oldest in sorted(self.out, key=lambda server: self.out[server].since)[: max(0, -self.room)]:
            del self.out[oldest]

    @property
    def room(self) -> int:
        """How many more may be ejected."""
        return len(self.candidates) // ONE_IN - len(self.out)

    def judge(
        self, traffic: Mapping[RealServerKey, RealServerTraffic], now: float, interval: float, accepts: Accepts
    ) -> Iterator[Happened | None]:
        """Eject those that fail, and try again those that answer. None: one that was to be ejected accepts.

        They are nominated `interval` seconds, a look, earlier, so that it is known by then whether they accept.
        """
        self.evidence.take({server: traffic[server] for server in self.candidates if server in traffic}, now)
        for server, ejected in list(self.out.items()):
            if ejected.hold <= self.ejection.hold and self.evidence.has_answered(server):
                yield self.readmit(server, "it answers on a connection that it still has", now)
        serving = self.candidates - self.out.keys()
        self.nominated.clear()
        for server, finding in self.evidence.failing(serving, self.ejection.after - interval, now).items():
            if does_accept := accepts(server):
                self.evidence.forget(server)
                yield None
            elif self.room <= len(self.nominated):
                continue
            elif does_accept is None or finding.seconds < self.ejection.after:
                self.nominated.add(server)
            else:
                yield self._eject(server, str(finding), now)
        for server, (since, hold) in list(self.trials.items()):
            if now >= since + hold and (self.evidence.accepted_at(server) or since) > since:
                del self.trials[server]

    def eject_found(self, server: RealServerKey, now: float) -> None:
        """Hold a real server that an earlier run has ejected."""
        hold = float(self.ejection.hold)
        self.out[server] = Ejected(now, now + hold, hold, FOUND)

    def readmit(self, server: RealServerKey, why: str, now: float) -> Happened:
        """Give a real server its weight again."""
        hold = self.out.pop(server).hold
        self.trials[server] = _Trial(now, hold)
        self.evidence.forget(server)
        return Happened(self.key, server, False, why, hold)

    def _eject(self, server: RealServerKey, why: str, now: float) -> Happened:
        trial = self.trials.pop(server, None)
        hold = min(2 * trial.hold, LONGEST_HOLD * self.ejection.hold) if trial else float(self.ejection.hold)
        self.out[server] = Ejected(now, now + hold, hold, why)
        self.evidence.hold(server)
        return Happened(self.key, server, True, why, hold)


class Ejections:
    """The virtual servers whose real servers may be ejected. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._watched: dict[VirtualServerKey, _Watched] = {}
        self._polled = 0.0
        self._unseen: list[VirtualServerKey] = []
        self.total = 0
        """Ejections so far."""
        self.refuted = 0
        """Nominations so far of real servers that then accepted a connection of this node's own."""

    def want(self, desired: VirtualServer) -> None:
        """Take a virtual server of a new plan, before it is compared with the kernel's."""
        if desired.ejection is None:
            self.forget(desired.key)
            return
        watched = self._watched.get(desired.key)
        if watched is None:
            watched = self._watched[desired.key] = _Watched(desired)
        watched.want(desired)

    def forget(self, key: VirtualServerKey) -> None:
        """Note that the virtual server was deleted, or that its real servers are not to be ejected."""
        self._watched.pop(key, None)

    def adopt(self, applied: Mapping[VirtualServerKey, VirtualServer], now: float) -> None:
        """Note those that an earlier run has ejected, from what the kernel has after the first scan."""
        for key, watched in self._watched.items():
            for address, port, weight in applied[key].real_servers if key in applied else ():
                if not weight and (address, port) in watched.candidates and watched.room > 0:
                    watched.eject_found((address, port), now)

    def effective(self, desired: VirtualServer) -> VirtualServer:
        """The virtual server with weight 0 for those of its real servers that are ejected."""
        if desired.ejection is None or not (out := self.of(desired.key)):
            return desired
        real_servers = [
            real._replace(weight=0) if (real.address, real.port) in out else real for real in desired.real_servers
        ]
        return msgspec.structs.replace(desired, real_servers=tuple(real_servers))

    def of(self, key: VirtualServerKey) -> Mapping[RealServerKey, Ejected]:
        """The ejected real servers of a virtual server."""
        watched = self._watched.get(key)
        return watched.out if watched is not None else {}

    def told(self, keys: Collection[VirtualServerKey], now: float) -> list[str]:
        """What there is to say of the ejected real servers of these virtual servers, one sentence each."""
        return [
            f"{host_port(*server)} of {key} is ejected for {now - ejected.since:.0f} s now: {ejected.why}; "
            f"tried again in {max(0.0, ejected.until - now):.0f} s"
            for key in keys
            for server, ejected in sorted(self.of(key).items())
        ]

    def advance(self, now: float) -> list[Happened]:
        """Try again those whose time is over."""
        return [
            watched.readmit(server, "its time is over", now)
            for watched in self._watched.values()
            for server, ejected in list(watched.out.items())
            if now >= ejected.until
        ]

    def to_poll(self, now: float) -> list[VirtualServerKey]:
        """The virtual servers to poll now. A poll continues in the next passes."""
        if not self._unseen:
            if not self._watched or now < self._polled + self._interval:
                return []
            self._unseen = list(self._watched)
        together = self._unseen[-POLLED_TOGETHER:]
        del self._unseen[-POLLED_TOGETHER:]
        self._polled = now
        return together

    def may_eject(self, key: VirtualServerKey) -> bool:
        """Whether the virtual server has enough real servers for one to be ejected."""
        return key in self._watched and len(self._watched[key].candidates) >= ONE_IN

    def judge(
        self, table: Mapping[VirtualServerKey, Mapping[RealServerKey, RealServerTraffic]], now: float, accepts: Accepts
    ) -> list[Happened]:
        """Take the counters, the result of a look. Returns the ejections and further trials that follow."""
        found = [
            event
            for key, traffic in table.items()
            if key in self._watched
            for event in self._watched[key].judge(traffic, now, self._interval, accepts)
        ]
        happened = [event for event in found if event is not None]
        self.refuted += len(found) - len(happened)
        self.total += sum(event.is_out for event in happened)
        return happened

    def nominated(self) -> Iterator[tuple[VirtualServerKey, RealServerKey]]:
        """The real servers that are to be ejected unless they accept a connection of this node's own."""
        return ((key, server) for key, watched in self._watched.items() for server in watched.nominated)

    def next_due(self) -> float | None:
        """When to look next, or to try a real server again; None if there is nothing to look at."""
        if not self._watched:
            return None
        look = self._polled if self._unseen else self._polled + self._interval
        return min([look, *(ejected.until for watched in self._watched.values() for ejected in watched.out.values())])

    @property
    def _interval(self) -> float:
        return max(POLL, POLL_EACH * len(self._watched))
