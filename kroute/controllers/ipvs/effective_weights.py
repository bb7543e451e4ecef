"""Turns planned weights into those of now: an ejected real server has none, and a new one climbs to its own."""

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec
import structlog

from kroute.base.backoff import retry_when_exhausted
from kroute.base.wording import host_port
from kroute.controllers.ipvs.ejections import Ejections, Happened
from kroute.controllers.ipvs.slow_starts import SlowStarts
from kroute.kernel.clients import VirtualServerTable
from kroute.kernel.ipvs.objects import RealServerKey
from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem, VirtualServer, VirtualServerKey
from kroute.reconcile.desired_state import DesiredState
from kroute.reconcile.pass_status import PassStatus, Report, names_of
from kroute.reconcile.resync_schedule import earliest
from kroute.reconcile.stage_gate import Revision

if TYPE_CHECKING:
    from kroute.controllers.ipvs.confirmations import Confirmations

log = structlog.get_logger(__name__)

EJECTED = "RealServerEjected"


class EffectiveWeights:
    """The weights of the real servers of `servers` as they should be now.

    `report` is called with each real server that is ejected.
    """

    def __init__(
        self,
        ipvs: VirtualServerTable,
        servers: DesiredState[VirtualServerKey, VirtualServer],
        report: Report,
        status: PassStatus,
    ) -> None:
        self._ipvs = ipvs
        self._servers = servers
        self._report = report
        self._status = status
        self._slow_starts = SlowStarts()
        self.ejections = Ejections()
        self._confirmations: Confirmations | None = None
        self._has_nominated = asyncio.Event()
        self._has_advanced = self._is_used = False

    def ejected(self, keys: Collection[VirtualServerKey]) -> list[str]:
        """What there is to say of the ejected real servers of these virtual servers, one sentence each."""
        return [f"{EJECTED}: {sentence}" for sentence in self.ejections.told(keys, self._status.clock())]

    def want(self, revision: Revision, servers: Mapping[VirtualServerKey, VirtualServer]) -> None:
        """Desire what a plan names, and no longer what its previous version named. Some are watched from now on."""
        for server in servers.values():
            self._is_used |= server.slow_start > 0 or server.ejection is not None
            if self._is_used:
                self._slow_starts.want(server)
                self.ejections.want(server)
        self._servers.want(revision, servers)

    def begin(self, applied: VirtualServer | None, desired: VirtualServer, draining: Collection[RealServerKey]) -> None:
        """Note which real servers of `desired` are new, before it is written.

        `applied` is what the kernel has, without those that are `draining`.
        """
        if not self._is_used:
            return
        if applied is not None and (out := self.ejections.of(desired.key)):
            whole = {real[:2]: real.weight for real in desired.real_servers if real[:2] in out}
            found = [real._replace(weight=whole.get(real[:2], real.weight)) for real in applied.real_servers]
            applied = msgspec.structs.replace(applied, real_servers=tuple(found))
        self._slow_starts.begin(applied, desired, draining, self._status.clock())

    def of(self, desired: VirtualServer) -> VirtualServer:
        """A virtual server whose weights change between plans, with those that its real servers should have now."""
        return self.ejections.effective(self._slow_starts.effective(desired))

    async def advance(self, now: float) -> None:
        """Let climbs go on, look at the counters, and have each virtual server whose weights change rechecked.

        The kernel has been scanned before the first call, which takes in the real servers that are ejected already.
        """
        is_first, self._has_advanced = not self._has_advanced, True
        if not self._is_used:
            return
        if is_first:
            self.ejections.adopt(self._servers.applied, now)
        changed = self._slow_starts.advance(now)
        happened = self.ejections.advance(now)
        if keys := self.ejections.to_poll(now):
            for gone in [key for key in keys if self._servers.desired(key) is None]:
                self.ejections.forget(gone)
            there = [key for key in keys if key in self._servers.applied and self.ejections.may_eject(key)]
            table = await self._ipvs.real_server_traffic(there)
            happened += self.ejections.judge({key: table[key] for key in there}, now, self._accepts)
        self._nominate()
        for event in happened:
            self._tell(event)
            desired = self._servers.desired(event.key)
            if not event.is_out and desired is not None:
                self._slow_starts.join(desired, event.server, now)
        for key in {*changed, *(event.key for event in happened)}:
            self._servers.recheck(key)

    async def confirm(self) -> None:
        """Connect to real servers that are to be ejected, once there is one, until cancelled."""
        if self._confirmations is None:
            await self._has_nominated.wait()
            self._confirmations = await retry_when_exhausted("connecting to real servers that are to be ejected", _load)
            self._nominate()
        await self._confirmations.run()

    def next_due(self) -> float | None:
        """When the next step of a climb, the next look at counters, or a trial is due."""
        if not self._is_used:
            return None
        return earliest(self._slow_starts.next_due(), self.ejections.next_due())

    def forget(self, key: VirtualServerKey) -> None:
        """Note that the virtual server was deleted."""
        self._slow_starts.forget(key)
        self.ejections.forget(key)

    def _nominate(self) -> None:
        """Have the node connect to each nominated real server, once for all virtual servers."""
        nominated: dict[RealServerKey, set[str]] = {}
        for key, server in self.ejections.nominated():
            nominated.setdefault(server, set()).update(owner.namespace for owner in self._servers.owners(key))
        if self._confirmations is not None:
            self._confirmations.nominate(nominated)
        elif nominated:
            self._has_nominated.set()

    def _accepts(self, server: RealServerKey) -> bool | None:
        return self._confirmations.accepts(server) if self._confirmations is not None else None

    def _tell(self, happened: Happened) -> None:
        key, server, is_out, why, hold = happened
        owners: Collection[ObjectKey] = self._servers.owners(key)
        endpoint = host_port(*server)
        log.info(
            "real_server.ejected" if is_out else "real_server.readmitted",
            service=" ".join(names_of(owners)),
            virtual_server=str(key),
            address=server[0],
            port=server[1],
            why=why,
            hold=hold,
        )
        if is_out:
            rest = f"gets no new connections on this node for {hold:.0f} s: {why}."
            for owner in owners:
                self._report(owner, Problem.about(EJECTED, f"{endpoint} of {key}", rest))


async def _load() -> "Confirmations":
    from kroute.controllers.ipvs.confirmations import (  # noqa: PLC0415  few nodes need it
        Confirmations,
    )

    return Confirmations()
