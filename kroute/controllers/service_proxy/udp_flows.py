"""The part of service_proxy that owns the fate of UDP flows in the connection tracker.

With net.ipv4.vs.conntrack IPVS leaves a conntrack entry for every flow, and a UDP client that keeps its socket lives
with that entry for as long as it talks. If it was made while there was no virtual server, or its address was not bound,
then the client is not masqueraded, and the answers come back translated to a wrong port: it is never served. So the
entries whose real server does not serve are deleted, and the client's next packet begins a new flow. TCP and SCTP
clients notice and reconnect: theirs are never touched.

IPVS ends its own entries of a deleted real server, and conntrack's with them (net.ipv4.vs.expire_nodest_conn). That
leaves the entries to such a real server that another proxy has made, or all of them where this sysctl cannot be set.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence, Set

import structlog

from kroute.backoff import Retries
from kroute.kernel.clients import ConntrackClient
from kroute.kernel.conntrack import DeleteFlow, Endpoint, Flow
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.netlink.message import address_family
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.reconcile.batches import batched
from kroute.reconcile.change_log import log_changes
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.pass_status import PassStatus

log = structlog.get_logger(__name__)

Serving = Callable[[VirtualServerKey], Collection[Endpoint]]
"""The real servers that a virtual server's clients may go on to; none for a virtual server that is gone."""

_LOOK = "look"
"""The key under which the look at the connection tracker is retried."""


class UdpFlows:
    """Ends the UDP flows whose real server no longer serves; asks the kernel only when there may be some.

    It is the caller's to suspect virtual servers of ours only: all flows to one that serves nothing are ended.
    """

    def __init__(self, status: PassStatus, conntrack: ConntrackClient) -> None:
        self._status = status
        self._conntrack = conntrack
        self._suspects: set[VirtualServerKey] = set()
        self._retries: Retries[str] = Retries()  # not the controller's: a failure here is no reason for a resync

    def suspect(self, keys: Iterable[VirtualServerKey]) -> None:
        """These virtual servers were made or deleted, lost a real server, or had their address bound.

        Those of TCP and SCTP do not count.
        """
        self._suspects.update(key for key in keys if key.protocol is Protocol.UDP)

    @property
    def is_due(self) -> bool:
        """Whether there is something to look for now."""
        return bool(self._suspects) and not self._retries.is_waiting(_LOOK, self._status.clock())

    def next_due(self) -> float | None:
        """When, by the controller's clock, to look again after a failure; None if there was none."""
        return self._retries.next_due()

    async def end_stale(self, serving: Serving) -> None:
        """If it is due, delete the suspects' flows whose real server is not among `serving`: one dump a family.

        Call it when IPVS has been written; `serving` is asked after the dump. It never raises for the kernel: what
        fails is logged once, and tried again later and later, while everything else goes on.
        """
        if not self.is_due:
            return
        suspects, self._suspects = self._suspects, set()
        errors: list[str] = []
        for family, keys in _by_family(suspects).items():
            try:
                refused = await self._end_stale(family, keys, serving)
            except KernelError as error:
                self._suspects |= keys
                errors.append(str(error))
            else:
                self._suspects |= {_virtual_server(failure.change.flow) for failure in refused}
                errors += map(str, refused)
        self._remember(errors)

    async def forget_all(self, keys: Iterable[VirtualServerKey], report: CleanupReport) -> None:
        """End every UDP flow to these virtual servers, which a cleanup has deleted.

        It makes no cleanup fail: what stays expires by itself, minutes after its last packet.
        """
        udp = {key for key in keys if key.protocol is Protocol.UDP}
        for family, group in _by_family(udp).items():
            try:
                flows = await self._flows(family, group)
                refused = await self._conntrack.delete(flows)
            except KernelError as error:
                log.warning("flows.left", error=str(error), next_step="they expire by themselves")
                continue
            for failure in refused[:1]:
                log.warning("flows.left", error=str(failure), flows=len(refused), next_step="they expire by themselves")
            for key, count in sorted(_count(flows, refused).items()):
                report.add(f"end the UDP flows of virtual server {key} ({count})")

    async def _end_stale(self, family: int, keys: Set[VirtualServerKey], serving: Serving) -> list[Failure[DeleteFlow]]:
        flows = await self._flows(family, keys)
        allowed = {key: frozenset(serving(key)) for key in keys}
        stale: list[Flow] = []
        for batch in batched(flows):
            stale += [flow for flow in batch if _real_server(flow) not in allowed[_virtual_server(flow)]]
            await asyncio.sleep(0)
        refused = await self._conntrack.delete(stale)
        ended = sorted(_count(stale, refused).items())
        self._status.wrote(len(stale) - len(refused))
        log_changes(log, ended, lambda _: "flows.ended", _fields)
        return refused

    async def _flows(self, family: int, keys: Set[VirtualServerKey]) -> list[Flow]:
        return await self._conntrack.udp_flows(family, [(key.address, key.port) for key in keys])

    def _remember(self, errors: Sequence[str]) -> None:
        if not errors:
            self._retries.succeeded(_LOOK)
            return
        self._status.counters.failures += len(errors)
        if self._retries.failed(_LOOK, self._status.clock()):
            log.warning(
                "flows.not_ended",
                error=errors[0],
                more_errors=len(errors) - 1,
                virtual_servers=len(self._suspects),
                next_step="trying again, later and later",
            )


def _by_family(keys: Iterable[VirtualServerKey]) -> dict[int, set[VirtualServerKey]]:
    families: dict[int, set[VirtualServerKey]] = {}
    for key in keys:
        families.setdefault(address_family(key.address), set()).add(key)
    return dict(sorted(families.items()))


def _virtual_server(flow: Flow) -> VirtualServerKey:
    """What the client wrote to."""
    return VirtualServerKey(Protocol.UDP, flow.destination, flow.destination_port)


def _real_server(flow: Flow) -> Endpoint:
    """Who answers: the virtual server's own address if IPVS had no part in the flow's beginning."""
    return flow.reply_source, flow.reply_source_port


def _count(flows: Iterable[Flow], refused: Iterable[Failure[DeleteFlow]]) -> Counter[VirtualServerKey]:
    """How many flows of each virtual server are gone."""
    left = {failure.change.flow for failure in refused}
    return Counter(_virtual_server(flow) for flow in flows if flow not in left)


def _fields(ended: tuple[VirtualServerKey, int]) -> dict[str, object]:
    return {"virtual_server": str(ended[0]), "flows": ended[1]}
