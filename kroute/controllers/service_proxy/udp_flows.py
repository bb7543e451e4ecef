"""The part of service_proxy that deletes stale UDP flows from conntrack.

With net.ipv4.vs.conntrack, IPVS leaves a conntrack entry for every flow. The packets of a UDP client that keeps its
socket belong to the same entry for as long as the client sends. If the entry was made while the virtual server did not
exist or the address was not bound, the client is not masqueraded, and replies are translated to a wrong port: the
client is never served. So kroute deletes the entries whose real server does not serve, also after it has bound an
address, and the client's next packet begins a new flow. TCP and SCTP clients notice the failure and reconnect, so their
entries are never deleted.

When a real server is deleted, IPVS deletes its own entries of that server, and conntrack's with them
(net.ipv4.vs.expire_nodest_conn). Then only entries that another proxy has made are left. Where this sysctl cannot be
set, all entries are left.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence, Set

import structlog

from kroute.base.backoff import Retries
from kroute.kernel.clients import ConntrackClient
from kroute.kernel.conntrack import DeleteFlow, Endpoint, Flow
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.netlink.message import address_family
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.reconcile.batch_writer import log_changes
from kroute.reconcile.batches import sliced
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.pass_status import PassStatus
from kroute.reconcile.resync_schedule import Metered

log = structlog.get_logger(__name__)

Serving = Callable[[VirtualServerKey], Collection[Endpoint]]
"""Returns the real servers to which a virtual server's flows may go; none for a virtual server that was deleted."""

_LOOK = "look"
"""The key under which a failed dump or deletion is retried."""


class UdpFlows:
    """Deletes the UDP flows whose real server no longer serves. It reads conntrack only when there may be some.

    Pass only virtual servers that are kroute's: every flow to a suspect that has no real servers is deleted.
    """

    def __init__(self, status: PassStatus, conntrack: ConntrackClient) -> None:
        self._status = status
        self._conntrack = conntrack
        self._suspects: set[VirtualServerKey] = set()
        self._may_look = float("-inf")
        self._retries: Retries[str] = Retries()  # not the controller's: a failure here needs no resync

    def suspect(self, keys: Iterable[VirtualServerKey]) -> None:
        """Note virtual servers that may have stale flows: they, or their address, were made, deleted, or lost a server.

        Those of TCP and SCTP are ignored.
        """
        self._suspects.update(key for key in keys if key.protocol is Protocol.UDP)

    @property
    def is_due(self) -> bool:
        """Whether there are suspects, and neither a failed attempt nor the pause after the last look delays it."""
        return (due := self.next_due()) is not None and self._status.clock() >= due

    def next_due(self) -> float | None:
        """When, on the controller's clock, the next look for stale flows is due; None without suspects."""
        if not self._suspects:
            return None
        retry = self._retries.next_due()
        return self._may_look if retry is None else max(retry, self._may_look)

    async def end_stale(self, serving: Serving) -> None:
        """If a look is due, delete the suspects' flows whose real server is not among `serving`.

        The first look is due at once, the next one after a pause, so that endless edits cost only a share of a
        processor. Call this after IPVS was written; it calls `serving` after the dump. It raises no KernelError: a
        failure is logged once and tried again with a backoff.
        """
        if not self.is_due:
            return
        await (look := Metered(self._look(serving)))
        self._may_look = self._status.clock() + look.pause

    async def _look(self, serving: Serving) -> None:
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
        """Delete every UDP flow to these virtual servers, which a cleanup has deleted.

        A failure is only logged, and does not make the cleanup fail: a flow expires minutes after its last packet.
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
        async for batch in sliced(flows):
            stale += [flow for flow in batch if _real_server(flow) not in allowed[_virtual_server(flow)]]
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
    """The virtual server to which the client sends."""
    return VirtualServerKey(Protocol.UDP, flow.destination, flow.destination_port)


def _real_server(flow: Flow) -> Endpoint:
    """The endpoint that replies. It is the virtual server's own if IPVS did not handle the flow's first packet."""
    return flow.reply_source, flow.reply_source_port


def _count(flows: Iterable[Flow], refused: Iterable[Failure[DeleteFlow]]) -> Counter[VirtualServerKey]:
    """How many flows of each virtual server were deleted."""
    left = {failure.change.flow for failure in refused}
    return Counter(_virtual_server(flow) for flow in flows if flow not in left)


def _fields(ended: tuple[VirtualServerKey, int]) -> dict[str, object]:
    return {"virtual_server": str(ended[0]), "flows": ended[1]}
