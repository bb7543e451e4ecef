"""Give Services of type LoadBalancer their addresses: of the agents with `--allocate-load-balancer-ips`, one does so.

The agents elect it by a Lease. It works in passes. A pass reads the Lease, lists all Services as they are, and plans
(`kroute.planning.address_allocation`). For some Services at a time it notes in the Lease what it will write, and writes
their status. Each write carries the version that was read, so it is refused (409) if the object has changed.

No address is given twice, also by a former holder that stood still, or whose requests arrive late:

- A status is written only if it was noted before, in a Lease that nobody else had written since it was read. So
  whoever holds the Lease later reads everything that may still be written.
- A note is dropped when the list shows another version of the Service: the write has arrived, or will be refused.
  Until then its addresses are reserved.
- A list that was requested after the Lease was read shows every write whose note is no longer there.
"""

import asyncio
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
import structlog

from kroute.base.backoff import Backoff, exhaustion
from kroute.director.election import Election
from kroute.director.lease import Lease, LeaseLock, LeaseRole
from kroute.director.settings import LeaseSettings
from kroute.inspect.status import AddressFill, AllocatorView
from kroute.model.addresses import unicast
from kroute.model.kinds import SERVICES
from kroute.model.objects import Applied, Change, Deleted, ObjectKey, Service
from kroute.planning.address_allocation import Assignment, BalancedService, allocating
from kroute.planning.catalog import Catalog
from kroute.planning.external_addresses import Place, admit, balanced_range
from kroute.reconcile.batches import in_turns
from kroute.settings import ALLOCATOR_LEASE, Settings
from kroute.telemetry.events import EventRecorder
from kroute.watchers import Sink
from kroute.watchers.json_text import decoded
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.decoding import ObjectDecoder, read_page
from kroute.watchers.kubernetes.errors import AnswerTooLongError, ApiError

log = structlog.get_logger(__name__)

LEASE = LeaseSettings(*ALLOCATOR_LEASE, duration=30, renew_deadline=20.0, retry_period=10.0)
"""Each agent looks at it as often as a kubelet renews the Lease of its Node."""
NOTE = "kroute.io/assigning"
"""The annotation of the Lease with the notes."""
MOST_WRITES = 64
"""Services whose status is written between two writes of notes. Their notes take 20 KiB of the Lease."""
PAUSE, PAUSES = 1.0, 10
"""Seconds between two passes at least, and as a multiple of the time that the one before took to list and plan."""
UNMET = 60.0
"""Seconds until a pass is made again because of a Service that has a problem."""
PAGE, SMALLEST_PAGE, MOST_PAGES = 500, 5, 20_000
"""Services in one page of the list, and pages of one list."""


class Note(msgspec.Struct, frozen=True):
    """A write that may arrive: of these addresses to the Service with this uid, if it still has this version."""

    uid: str
    version: str
    addresses: tuple[str, ...]


class _Metadata(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _Annotated(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_decoder = ObjectDecoder(BalancedService)
_decode_notes = msgspec.json.Decoder(tuple[Note, ...]).decode


class Allocator:
    """The part of an agent that may be the allocator. `catalog` and `recorder` are the agent's."""

    def __init__(self, settings: Settings, api: Api, catalog: Catalog, recorder: EventRecorder) -> None:
        self._settings = settings
        self._api = api
        self._catalog = catalog
        self._recorder = recorder
        self._identity = self._new_identity()
        self._lock = LeaseLock(api, LEASE.namespace, LEASE.name)
        self._found = AllocatorView(settings.node_name, is_here=True)
        self._due = asyncio.Event()
        self._balanced: set[ObjectKey] = set()
        self._page = PAGE
        self._pause = PAUSE
        self.election = Election(
            self._lock,
            self._identity,
            LEASE,
            lambda _role: self._due.set(),
            lambda: catalog.ready,
            new_identity=self._new_identity,
            sleep=api.presence.sleep,
        )

    def beside(self, sink: Sink) -> Sink:
        """A sink that passes changes on, and has a pass made if one concerns a Service of type LoadBalancer."""

        def take(changes: Sequence[Change]) -> None:
            sink(changes)
            for change in changes:
                if self._concerns(change):
                    self._due.set()

        return take

    async def run(self) -> None:
        """Take part until cancelled, then let another agent take the Lease at once."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.election.run(), name="allocator's election")
                group.create_task(self._allocate(), name="allocator")
        finally:
            if self.election.role is LeaseRole.ACTIVE:
                await self.election.release()

    def view(self) -> AllocatorView:
        """Who is the allocator, and what the last pass has found if it is this one."""
        if self.election.role is LeaseRole.ACTIVE:
            return self._found
        return AllocatorView(self.election.holder.rpartition("_")[0])

    async def pass_once(self) -> bool:
        """Make one pass, if this agent has the Lease. Returns whether all Services have what they ask for.

        Raises ApiError, and DecodeError if the API server or the Lease says something else than it should.
        """
        began = time.monotonic()
        lease = await self._lock.read()
        if lease.spec.holder_identity != self._identity:
            return True
        noted, services = notes_in(lease), await self._services()
        now = {service.metadata.uid: service.metadata.resource_version for service in services}
        open_notes = {note.uid: note for note in noted if now.get(note.uid) == note.version}
        reserved = {uid: note.addresses for uid, note in open_notes.items()}
        plan = await in_turns(allocating(services, reserved, self._settings, self._refusal))
        self._pause = max(PAUSE, PAUSES * (time.monotonic() - began))
        for key, problem in plan.problems:
            self._recorder.report(key, problem)
        noted_first = sorted(plan.assignments, key=lambda it: it.service.metadata.uid not in open_notes)
        refused: list[ObjectKey] = []
        for first in range(0, max(len(noted_first), 1), MOST_WRITES):  # without writes notes may be to be dropped
            writes = noted_first[first : first + MOST_WRITES]
            known = await self._write_notes(lease, tuple(_notes(writes, open_notes)))
            if known is None:
                return False
            lease = known
            refused += [it.service.key for it in writes if not await self._write(it)]
        if refused:  # these do not arrive later: they need no note
            await self._write_notes(lease, tuple(open_notes.values()))
            self._pause = max(PAUSE, PAUSES * (time.monotonic() - began))
        waiting = {*refused, *(key for key, _ in plan.problems)}
        fills = {str(family): AddressFill(*fill) for family, fill in plan.fills.items()}
        self._found = AllocatorView(self._settings.node_name, is_here=True, waiting=len(waiting), addresses=fills)
        return not waiting

    async def _allocate(self) -> None:
        backoff = Backoff(PAUSE, UNMET)
        longest: float | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(longest):
                    await self._due.wait()
            self._due.clear()
            longest = None
            if self.election.role is not LeaseRole.ACTIVE:
                continue
            try:
                longest = None if await self.pass_once() else UNMET
                backoff.reset()
            except Exception as error:
                if not isinstance(error, (ApiError, msgspec.DecodeError)) and exhaustion(error) is None:
                    raise
                log.warning("allocator.failed", error=str(error), next_step="trying again")
                longest = backoff.delay()
            await asyncio.sleep(self._pause)

    def _concerns(self, change: Change) -> bool:
        match change:
            case Applied(Service() as service):
                was_balanced = service.key in self._balanced
                if service.spec.type == "LoadBalancer":
                    self._balanced.add(service.key)
                    return True
                self._balanced.discard(service.key)
                return was_balanced
            case Deleted(kind, key) if kind is Service and key in self._balanced:
                self._balanced.discard(key)
                return True
        return False

    def _refusal(self, address: str) -> str:
        """Why a node like this one does not serve the address as a VIP; empty if it does."""
        if unicast(address) is None:
            return "is not a unicast address that may leave a machine."
        catalog, settings = self._catalog, self._settings
        admission = admit(address, balanced_range(settings), catalog.node, settings, catalog.owners)
        return "" if admission.place is Place.VIP else admission.reason or "is an address of a node."

    def _new_identity(self) -> str:
        """A name that no other process has, nor an earlier run: a request of that one may still arrive."""
        self._identity = f"{self._settings.node_name}_{uuid.uuid4()}"
        return self._identity

    async def _services(self) -> list[BalancedService]:
        """All Services, as they are at one moment after this was called."""
        query = {"limit": str(self._page)}
        found: list[BalancedService] = []
        for _ in range(MOST_PAGES):
            try:
                page = await read_page(await self._api.get(SERVICES.path, query))
            except AnswerTooLongError:  # anybody may write objects of 1 MiB
                self._page = max(SMALLEST_PAGE, self._page // 10)
                raise
            items = map(_decoder.decode, page.items or ())
            found += [item for item in items if isinstance(item, BalancedService)]
            if not page.metadata.token:
                return found
            query["continue"] = page.metadata.token
        raise ApiError(0, "", f"the list of Services has more than {MOST_PAGES} pages")

    async def _write_notes(self, lease: Lease, notes: tuple[Note, ...]) -> Lease | None:
        """Note in the Lease what may be written from now on. Returns None if another agent may have written it."""
        if notes_in(lease) == notes:
            return lease
        text = msgspec.json.encode(notes).decode()
        term = _term(lease)
        while _term(lease) == term:
            try:
                return await self._lock.update(lease.annotated(NOTE, text), lease.spec)
            except ApiError as error:
                if error.status != 409:
                    raise
            lease = await self._lock.read()  # this agent may have renewed it
        return None

    async def _write(self, assignment: Assignment) -> bool:
        """Write the status of a Service. Returns whether it has its addresses, or is not what it was any more."""
        service, addresses = assignment
        metadata = service.metadata
        patch = {
            "metadata": {"resourceVersion": metadata.resource_version},
            "status": {"loadBalancer": {"ingress": [{"ip": address} for address in addresses] or None}},
        }
        try:
            await self._api.patch(f"/api/v1/namespaces/{metadata.namespace}/services/{metadata.name}/status", patch)
        except ApiError as error:
            if error.status in {404, 409}:
                self._due.set()
                return True
            if not error.is_final:
                raise
            next_step = "allow the verb patch on services/status (docs/load-balancer-addresses.md)"
            log.warning("load_balancer.refused", service=str(metadata.key), error=str(error), next_step=next_step)
            return False
        log.info("load_balancer.assigned", service=str(metadata.key), addresses=addresses)
        return True


def notes_in(lease: Lease) -> tuple[Note, ...]:
    """What may still be written by the agents that have had the Lease. Raises DecodeError."""
    annotations = msgspec.convert(lease.document, _Annotated).metadata.annotations or {}
    return decoded(_decode_notes, annotations.get(NOTE, "[]").encode())


def _notes(writes: Iterable[Assignment], open_notes: Mapping[str, Note]) -> Iterable[Note]:
    """The notes that are open, and those of these writes. A Service may have both."""
    notes = dict(open_notes)
    for service, addresses in writes:
        uid, version = service.metadata.uid, service.metadata.resource_version
        before = notes[uid].addresses if uid in notes else ()
        notes[uid] = Note(uid, version, tuple(dict.fromkeys((*before, *addresses))))
    return notes.values()


def _term(lease: Lease) -> tuple[object, ...]:
    """What changes whenever another process has written the Lease."""
    return lease.spec.holder_identity, lease.spec.lease_transitions, notes_in(lease)
