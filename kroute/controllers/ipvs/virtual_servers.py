"""The part of service_proxy that owns IPVS: virtual servers and their real servers.

A virtual server is recorded in the ledger before it is made. A foreign one is never changed, even if a plan wants it:
the plan's other virtual servers are written, and this one is tried again later.

A virtual server without real servers is not written: in the kernel it would take packets before the filter could refuse
them. It stays only while old real servers of it drain.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from errno import ENOENT

import structlog
from msgspec.structs import replace

from kroute.base.schedulers import SCHEDULERS_BY_ORDER
from kroute.controllers.ipvs.drains import Drains
from kroute.controllers.ipvs.edits import (
    ABSENT,
    Edit,
    edit,
    event_of,
    fields_of,
    is_absent,
    is_taken,
    only_takes_away,
)
from kroute.controllers.ipvs.effective_weights import EffectiveWeights
from kroute.controllers.ipvs.schedulers import Schedulers
from kroute.controllers.ipvs.server_order import ServerOrder, There, apart_from_moves
from kroute.controllers.ipvs.table_look import TableLook
from kroute.kernel.clients import SysctlClient, VirtualServerTable
from kroute.kernel.errors import Failure
from kroute.kernel.ipvs.objects import (
    AddVirtualServer,
    DeleteRealServer,
    DeleteVirtualServer,
    IpvsChange,
    RealServerKey,
    SetVirtualServer,
    VirtualServerState,
)
from kroute.kernel.ipvs.objects import VirtualServerKey as KernelKey
from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem, VirtualServer, VirtualServerKey
from kroute.reconcile.batch_writer import BatchWriter, log_changes
from kroute.reconcile.batches import in_portions
from kroute.reconcile.comparison.virtual_servers import (
    agrees,
    describe_drift,
    in_terms_of_plans,
    is_nothing,
    matches_exactly,
    options_of,
    planned_key,
    stale_real_servers,
)
from kroute.reconcile.controller import Shared
from kroute.reconcile.desired_state import Delta, DesiredState
from kroute.reconcile.ledger import Ledger, VirtualServerDeleted, VirtualServerMade
from kroute.reconcile.pass_status import PassStatus, Report, names_of
from kroute.reconcile.resync_schedule import earliest

log = structlog.get_logger(__name__)

VIRTUAL_SERVERS_A_BATCH = 32
"""Virtual servers that are written together."""
REAL_SERVERS_A_BATCH = 2000
"""Real servers that are written together, unless one virtual server has more: some 20 ms."""

_Desired = Mapping[VirtualServerKey, VirtualServer | None]
"""Virtual servers as they are desired; None where nobody wants one."""

Asked = Callable[[VirtualServerKey], bool]

Suspect = Callable[[Iterable[VirtualServerKey]], None]
"""Called with virtual servers whose UDP flows may lead to a real server that no longer serves."""


class VirtualServers:
    """Reconciles our part of the IPVS table."""

    def __init__(
        self,
        shared: Shared,
        status: PassStatus,
        ipvs: VirtualServerTable,
        sysctls: SysctlClient,
        ledger: Ledger,
        suspect: Suspect,
    ) -> None:
        settings, report = shared.settings, shared.report
        self.desired: DesiredState[VirtualServerKey, VirtualServer] = DesiredState(self._is_as_desired, is_nothing)
        self._status = status
        self._look = TableLook(ipvs, settings)
        self._order = ServerOrder(ipvs, sysctls, self._look.wrote)
        self._ledger = ledger
        self._suspect = suspect
        self._drains = Drains(settings.drain_timeout)
        self._schedulers = Schedulers(settings.usual_scheduler, report)
        self.weights = EffectiveWeights(ipvs, self.desired, report, status)
        self._foreign = _ForeignServers(status, self.desired, report)
        self._edits: BatchWriter[IpvsChange, KernelKey] = BatchWriter(
            status, key_of=lambda change: change.key, tell=self._tell, note=None, owners_of=self._owners
        )

    async def look(self) -> bool:
        """Whether others may have changed our part since the last scan or look. Have missing schedulers asked for."""
        self._schedulers.ask_again()
        return await self._look.finds_change(self.desired.applied, self._drains.of, self.ours)

    async def learn(self, write_new_changes: Callable[[], Awaitable[None]]) -> list[str]:
        """Scan the table into the applied state, awaiting `write_new_changes` between two parts; returns the drift."""
        await self._look.begin()
        resync = self.desired.resync()
        draining: set[VirtualServerKey] = set()
        no_longer_foreign = set(self._foreign.keys)
        now = self._status.clock()
        async for batch in self._look.table.scan(self._ledger.virtual_servers):
            for found, state in batch:
                if found in resync.overtaken:
                    continue
                if found not in self._ledger.virtual_servers:
                    no_longer_foreign.discard(found)
                    self._foreign.keys.add(found)
                else:
                    self._schedulers.found(state.options.scheduler)
                    known = self._if_unchanged(found, state)
                    if known is None:
                        key = planned_key(found)
                        if stale := stale_real_servers(state, self.desired.desired(key)):
                            draining.add(key)
                        self._drains.found(key, stale, now)
                        known = in_terms_of_plans(key, state, stale)
                    resync.found(known.key, known)
            await write_new_changes()
        self._foreign.keys -= no_longer_foreign
        self._drains.keep_only(draining | resync.overtaken)
        self._schedulers.ask_again()
        return [describe_drift(*drift) for drift in await resync.complete()]

    def _if_unchanged(self, key: VirtualServerKey, state: VirtualServerState) -> VirtualServer | None:
        """The applied (or else the desired) object, if the kernel has exactly that and no real server of it drains."""
        known = self.desired.applied.get(key) or self.desired.desired(key)
        return known if known is not None and not self._drains.of(key) and matches_exactly(state, known) else None

    async def write(self, is_needed: Asked, is_held: Asked) -> None:
        """Write the deltas, then delete the real servers that have drained, then virtual servers that have none left.

        First the kernel is asked again for missing schedulers, and weights go on: both may make more deltas. A virtual
        server that nobody wants stays while it `is_needed`. One that `is_held` is changed only if it gives packets no
        new way; it is not even deleted because it has no real servers.
        """
        await self._ask_again_for_schedulers()
        now = self._status.clock()
        await self.weights.advance(now)
        written = self._status.counters.writes
        await self._write_due(is_needed, is_held)
        await self._end_drains(now)
        if self._status.counters.writes > written and self.desired.unsettled:
            await self._write_due(is_needed, is_held)

    def next_due(self) -> float | None:
        """When the next poll of drains, or the next change of a weight, is due."""
        return earliest(self._drains.next_due(), self.weights.next_due())

    def ours(self) -> Set[VirtualServerKey]:
        """The applied and the desired virtual servers, without foreign ones."""
        return (self.desired.applied.keys() | self.desired.desired_keys()) - self._foreign.keys

    def serving(self, key: VirtualServerKey) -> list[RealServerKey]:
        """The real servers to which a virtual server's flows may go: those that it should have, or that drain."""
        desired = self.desired.desired(key)
        wanted = desired.real_servers if desired else ()
        return [(address, port) for address, port, _ in wanted] + list(self._drains.of(key))

    async def _write_due(self, is_needed: Asked, is_held: Asked) -> None:
        waiting = self._status.waiting()
        async for deltas in self.desired.pending():
            due = []
            for delta in deltas:
                key, applied, desired = delta
                if desired is None:
                    must_wait = is_needed(key)
                else:
                    must_wait = is_held(key) and not only_takes_away(applied, self._effective(desired))
                if not must_wait and key not in waiting:
                    due.append(delta)
            for number, batch in enumerate(in_portions(due, _size, REAL_SERVERS_A_BATCH, VIRTUAL_SERVERS_A_BATCH)):
                if number:
                    await asyncio.sleep(0)
                keys = self._foreign.leave_out(batch) if self._foreign.keys else [delta.key for delta in batch]
                await self._write(keys)

    async def _write(self, keys: Sequence[VirtualServerKey]) -> None:
        """Write these virtual servers. The ledger names each before it is made, and as long as it may exist."""
        desired = {key: self.desired.desired(key) for key in keys}
        await self._ask_for_schedulers(desired.values())
        edits = await self._plan_edits(desired)
        changes = [change for planned in edits.values() for change in planned.changes]
        moved = {(key, real_server) for key, planned in edits.items() for real_server in planned.moved}
        made = [key for key in keys if key not in self.desired.applied and key not in self._ledger.virtual_servers]
        if made:
            self._ledger.record(VirtualServerMade(key) for key in made)
        if losing := [key for key, planned in edits.items() if planned.takes_away]:
            self._suspect(losing)  # now, in case that the write fails in the middle
        failures = [failure for failure in await self._order.write(changes, moved) if not is_absent(failure)]
        self._settle(edits, changes, made, failures)

    async def _plan_edits(self, desired: _Desired) -> dict[VirtualServerKey, Edit]:
        """The edit of each. Where the order of real servers matters, the kernel's is read first."""
        by_order = [server for server in desired.values() if server and server.scheduler in SCHEDULERS_BY_ORDER]
        there = await self._order.read(by_order, self.desired.applied) if by_order else {}
        return {key: self._edit(key, server, there.get(key)) for key, server in desired.items()}

    def _settle(
        self,
        edits: Mapping[VirtualServerKey, Edit],
        changes: Sequence[IpvsChange],
        made: Iterable[VirtualServerKey],
        failures: Sequence[Failure[IpvsChange]],
    ) -> None:
        """Note what the kernel has now. The ledger forgets what is gone, and what turns out to be another program's."""
        # A virtual server's first refusal is the cause of its later ones, so report that one.
        refusals: dict[KernelKey, str] = {
            planned_key(failure.change.key): str(failure) for failure in reversed(failures)
        }
        taken = {failure.change.key for failure in failures if is_taken(failure)}
        if new := [key for key in edits if key not in taken and key not in self.desired.applied]:
            self._suspect(new)
        not_ours = [key for key in made if key in taken]
        refusals |= {key: self._foreign.refuse(key) for key in not_ours}
        gone = [key for key, planned in edits.items() if planned.is_deletion and key not in refusals]
        if gone or not_ours:
            self._ledger.record(VirtualServerDeleted(key) for key in [*gone, *not_ours])
        self._edits.conclude(changes, refusals)
        now = self._status.clock()
        for key, planned in edits.items():
            if key not in refusals:
                self._remember(key, planned, now)

    def _edit(self, key: VirtualServerKey, desired: VirtualServer | None, there: There | None) -> Edit:
        if desired is None:
            return Edit([DeleteVirtualServer(key)], [])
        if desired.real_servers and self._schedulers.missing:
            self._schedulers.replace_missing(desired, self.desired.owners(key))
        applied, draining = self.desired.applied.get(key), self._drains.of(key)
        self.weights.begin(applied, desired, draining)
        return edit(applied, self._effective(desired), draining, there)

    def _remember(self, key: VirtualServerKey, written: Edit, now: float) -> None:
        desired = self.desired.desired(key)
        if desired is None or written.is_deletion:
            self._drains.forget(key)
            self.weights.forget(key)
            self.desired.note_applied(key, None)
            return
        deleted = [change.real_server for change in written.changes if isinstance(change, DeleteRealServer)]
        self._drains.stop(key, deleted + [(address, port) for address, port, _ in desired.real_servers])
        for real_server in written.draining:
            self._drains.start(key, real_server, now)
        # A virtual server that loses its last real server keeps its options in the kernel until it is deleted.
        served = replace(self.desired.applied[key], real_servers=()) if is_nothing(desired) else desired
        self.desired.note_applied(key, self._effective(served))

    async def _ask_for_schedulers(self, servers: Iterable[VirtualServer | None]) -> None:
        """Ask the kernel for each scheduler whose presence is unknown, with one virtual server."""
        for server in servers:
            if server is not None and server.real_servers and not self._schedulers.is_known(server.scheduler):
                await self._ask_for_scheduler(server)

    async def _ask_again_for_schedulers(self) -> None:
        for scheduler in self._schedulers.to_ask_again():
            candidates = (self.desired.desired(key) for key in self._schedulers.missing[scheduler])
            desired = [server for server in candidates if server is not None and server.scheduler == scheduler]
            applied = next((server for server in desired if server.key in self.desired.applied), None)
            if not desired:
                self._schedulers.forget(scheduler)
            elif applied is not None:
                await self._ask_for_scheduler(applied)

    async def _ask_for_scheduler(self, desired: VirtualServer) -> None:
        """Give one virtual server its scheduler; ENOENT says that the kernel does not have it."""
        key, applied = desired.key, self.desired.applied.get(desired.key)
        question = SetVirtualServer(key, options_of(desired)) if applied else AddVirtualServer(key, options_of(desired))
        is_new = key not in self._ledger.virtual_servers
        if is_new:
            self._ledger.record([VirtualServerMade(key)])
        failures = await self._order.write([question])
        if not failures:
            self._status.wrote(1)
            if applied is None:
                self._suspect([key])
            now = replace(desired, real_servers=applied.real_servers if applied else ())
            self.desired.note_applied(key, await self._order.as_found(now))
            for waiting in self._schedulers.found(desired.scheduler):
                self.desired.recheck(waiting)
        elif failures[0].errno == ENOENT:
            self._schedulers.not_found(desired.scheduler)
        elif is_new and is_taken(failures[0]):
            self._ledger.record([VirtualServerDeleted(key)])

    async def _end_drains(self, now: float) -> None:
        """Poll some of the draining real servers, and delete those that have drained."""
        if not (keys := self._drains.to_poll(now)):
            return
        drained = self._drains.drained(await self._drains.read(self._look.table, keys), now)
        self._suspect(key for key, _ in drained)
        deletions = [DeleteRealServer(*each) for each in drained]
        gone = {change.key for change in await self._edits.write(deletions, self._order.write, harmless=ABSENT)}
        for key, real_server in drained:
            if key in gone:
                self._drains.stop(key, [real_server])
                self.desired.recheck(key)

    def _is_as_desired(self, applied: VirtualServer, desired: VirtualServer) -> bool:
        return agrees(applied, self._effective(desired), self._drains.of(applied.key))

    def _effective(self, desired: VirtualServer) -> VirtualServer:
        """The virtual server with the scheduler that the kernel has, and the weights of now.

        It is called for each one that is compared, so it calls others only where they would change something.
        """
        server = self._schedulers.effective(desired) if self._schedulers.missing else desired
        return self.weights.of(server) if server.slow_start or server.ejection is not None else server

    def _owners(self, key: KernelKey) -> tuple[ObjectKey, ...]:
        return self.desired.owners(planned_key(key))

    def _tell(self, changes: Sequence[IpvsChange]) -> None:
        others, moves = apart_from_moves(changes)
        log_changes(log, others, event_of, self._fields)
        for key, moved in moves.items():
            names = " ".join(names_of(self.desired.responsible(planned_key(key))))
            log.info("real_servers.ordered", service=names, virtual_server=str(planned_key(key)), moved=moved)

    def _fields(self, change: IpvsChange) -> dict[str, object]:
        key = planned_key(change.key)
        return {"service": " ".join(names_of(self.desired.responsible(key))), **fields_of(change)}


class _ForeignServers:
    """The known foreign virtual servers. A plan that wants one is refused this key alone, and tried again later."""

    def __init__(
        self, status: PassStatus, desired: DesiredState[VirtualServerKey, VirtualServer], report: Report
    ) -> None:
        self.keys: set[KernelKey] = set()
        self._status = status
        self._desired = desired
        self._report = report

    def refuse(self, key: VirtualServerKey) -> str:
        """Note that this one is foreign, report it if that is new, and return the sentence."""
        self.keys.add(key)
        subject = f"virtual server {key}"
        message = (
            f"{subject} exists on this node and is not in the ledger of what kroute has made, so it is left alone and "
            "the Service is not served there. Delete it (ipvsadm -D), or change the Service."
        )
        if key not in self._status.retries:
            for owner in self._desired.owners(key):
                self._report(owner, Problem("ForeignVirtualServer", subject, message))
        return message

    def leave_out(self, deltas: Sequence[Delta[VirtualServerKey, VirtualServer]]) -> list[VirtualServerKey]:
        """Refuse the deltas of foreign virtual servers; returns the keys of the others, which may be written."""
        refusals = {delta.key: self.refuse(delta.key) for delta in deltas if delta.key in self.keys}
        self._status.refused(refusals, (owner for key in refusals for owner in self._desired.owners(key)))
        return [delta.key for delta in deltas if delta.key not in refusals]


def _size(delta: Delta[VirtualServerKey, VirtualServer]) -> int:
    """How many real servers it concerns."""
    _, applied, desired = delta
    return max(len(applied.real_servers) if applied else 0, len(desired.real_servers) if desired else 0)
