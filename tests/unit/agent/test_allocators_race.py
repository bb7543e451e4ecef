"""No address is given twice, whatever two allocators, a slow network and users do: a property."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kroute.agent import allocator
from kroute.agent.allocator import Allocator
from kroute.director.lease import LeaseSpec
from kroute.planning.catalog import Catalog
from kroute.telemetry.events import EventRecorder
from kroute.watchers.kubernetes.errors import ApiError, UnreachableError
from tests.apiserver import ApiServer, writes
from tests.apiserver.encoding import encode
from tests.apiserver.lists import list_objects
from tests.apiserver.resources import parse_path
from tests.apiserver.status import StatusError
from tests.builders import LISTED, facts, settings
from tests.examples import examples
from tests.unit.watching import service

RANGE = ("192.0.2.8/31",)
ADDRESSES = [f"192.0.2.{number}" for number in range(8, 11)]
KEY, ASKED = "kroute.io/share-load-balancer-ip", "kroute.io/load-balancer-ips"
NAMES = "abcde"
SHARED = {"a": 80, "b": 81, "c": 80}
"""Services with one key, and their ports."""
FATES = {
    "PATCH": ["answered", "answered", "lost", "unanswered", "late", "late", "late", "refused"],
    "PUT": ["answered"] * 7 + ["lost", "unanswered", "late"],
    "POST": ["answered"],
}
"""What may become of a request, each as likely as the others of its method."""
DEEPEST = 3
STEPS = 40

Action = Callable[[], Awaitable[None]]


class _Request:
    """What the stand-in reads of a write."""

    def __init__(self, method: str, body: Mapping[str, Any]) -> None:
        self.method = method
        self.content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        self._body = dict(body)

    async def json(self) -> dict[str, Any]:
        return self._body


class Wire:
    """The stand-in at the end of a network: a request may be lost, come late, or have no answer. It is an `Api`."""

    def __init__(self, world: "World") -> None:
        self.store = ApiServer().store
        self.late: list[Action] = []
        self.is_sound = False
        self._world = world
        self.presence = _Presence()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        await self._world.meanwhile()
        target = parse_path(path)
        assert target is not None
        if target.name is None:
            listed = encode(list_objects(self.store, target, dict(params or {}), lambda _: True, watch_cache=True))
        elif target.key in self.store.current(target.type):
            listed = encode(self.store.current(target.type)[target.key])
        else:
            raise ApiError(404, "NotFound", path)
        await self._world.meanwhile()
        return listed

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        return await self._send("POST", path, body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> bytes:
        return await self._send("PUT", path, body)

    async def patch(self, path: str, body: Mapping[str, Any]) -> bytes:
        return await self._send("PATCH", path, body)

    async def _send(self, method: str, path: str, body: Mapping[str, Any]) -> bytes:
        await self._world.meanwhile()
        fate = "answered" if self.is_sound else self._world.rng.choice(FATES[method])
        if fate == "late":
            self.late.append(lambda: self._arrives_late(method, path, body))
        answer = await self._arrive(method, path, body) if fate in {"answered", "unanswered"} else b""
        await self._world.meanwhile()
        if fate == "refused":
            raise ApiError(422, "Invalid", "an admission policy refuses it")
        if fate != "answered":
            raise UnreachableError(fate)
        return answer

    async def _arrives_late(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        try:
            await self._arrive(method, path, body)
        except ApiError:
            return

    async def _arrive(self, method: str, path: str, body: Mapping[str, Any]) -> bytes:
        target = parse_path(path)
        assert target is not None
        try:
            _, item = await writes.write(self.store, _Request(method, body), target)  # type: ignore[arg-type]
        except StatusError as error:
            raise ApiError(error.code, "", str(error)) from error
        self._world.check()
        return encode(item)


class World:
    """A cluster with two allocators. `rng` decides what happens, one thing within another."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.wire = Wire(self)
        self._depth = 0
        self._busy: set[int] = set()
        self._settings = settings(allocate_load_balancer_ips=True, load_balancer_ip_ranges=RANGE)
        self._allocators = [self._allocator(), self._allocator()]

    async def meanwhile(self) -> None:
        """Between two requests of one, others may do something."""
        if not self.wire.is_sound and self._depth < DEEPEST and self.rng.random() < 0.3:
            await self.step()

    async def step(self) -> None:
        self._depth += 1
        try:
            weights = {self.make_pass: 4, self.take_lease: 3, self.use: 4, self.arrive: 1, self.crash: 1}
            [act] = self.rng.choices([*weights], [*weights.values()])
            await act()
        finally:
            self._depth -= 1

    async def make_pass(self, number: int | None = None) -> None:
        number = self.rng.randrange(2) if number is None else number
        if number in self._busy:
            return  # an allocator makes one pass after the other
        self._busy.add(number)
        try:
            await self._allocators[number].pass_once()
        except ApiError:
            return
        finally:
            self._busy.discard(number)

    async def take_lease(self, number: int | None = None) -> None:
        """As after the holder's time: an allocator takes the Lease, or makes it."""
        taker = self._allocators[self.rng.randrange(2) if number is None else number]
        lock, identity = taker._lock, taker._identity
        try:
            lease = await lock.read()
            transitions = (lease.spec.lease_transitions or 0) + 1
            await lock.update(lease, replace(lease.spec, holder_identity=identity, lease_transitions=transitions))
        except ApiError as error:
            if error.status == 404:
                await self._make_lease(taker)

    async def crash(self) -> None:
        """An allocator ends, perhaps in the middle of a pass, whose requests may still arrive; another begins."""
        self._allocators[self.rng.randrange(2)] = self._allocator()

    async def arrive(self) -> None:
        """A request arrives that was on its way."""
        if self.wire.late:
            await self.wire.late.pop(self.rng.randrange(len(self.wire.late)))()

    async def use(self) -> None:
        """A user creates, changes or deletes a Service. The API server clears the status of another type."""
        name = self.rng.choice(NAMES)
        known = {item["metadata"]["name"]: item for item in self.services()}
        what = self.rng.choice(["create", "create", "create", "delete", "type", "ask", "touch"])
        if what == "create" and name not in known:
            annotations = {KEY: "web"} if name in SHARED else {}
            made = service(name, type="LoadBalancer", ipFamilies=["IPv4"], ports=[{"port": SHARED.get(name, 80)}])
            created = f"2026-01-0{self.rng.randrange(1, 9)}T00:00:00Z"
            metadata = {**made["metadata"], "annotations": annotations, "creationTimestamp": created}
            self.wire.store.put({**made, "metadata": metadata})
        elif what == "delete" and name in known:
            self.wire.store.delete(parse_path("/api/v1/services").type, f"default/{name}")  # type: ignore[union-attr]
        elif name in known:
            self._change(known[name], what)

    def _change(self, item: dict[str, Any], what: str) -> None:
        if what == "type":
            kind = "ClusterIP" if item["spec"]["type"] == "LoadBalancer" else "LoadBalancer"
            item = {**item, "spec": {**item["spec"], "type": kind}, "status": {"loadBalancer": {}}}
        elif what == "ask":
            annotations = {**item["metadata"]["annotations"], ASKED: self.rng.choice(ADDRESSES)}
            item = {**item, "metadata": {**item["metadata"], "annotations": annotations}}
        self.wire.store.put(item)

    def services(self) -> list[dict[str, Any]]:
        target = parse_path("/api/v1/services")
        assert target is not None
        return [*self.wire.store.current(target.type).values()]

    def addresses(self) -> dict[str, list[str]]:
        found = {item["metadata"]["name"]: item.get("status", {}).get("loadBalancer", {}) for item in self.services()}
        return {name: [entry["ip"] for entry in status.get("ingress", ())] for name, status in found.items()}

    def check(self) -> None:
        """No address is another's, unless both share it by key and have no port in common."""
        holders: dict[str, list[str]] = {}
        for name, addresses in self.addresses().items():
            for address in addresses:
                holders.setdefault(address, []).append(name)
        for address, names in holders.items():
            ports = [SHARED.get(name) for name in names]
            assert len(names) == 1 or (None not in ports and len(set(ports)) == len(ports)), (address, names)

    async def settle(self) -> None:
        """The network is sound again, and one allocator goes on: in the end there is nothing to write."""
        self.wire.is_sound = True
        while self.wire.late:
            await self.arrive()
        await self.take_lease(0)
        for _ in range(2 * len(NAMES)):
            await self.make_pass(0)
        revision = self.wire.store.revision
        await self.make_pass(0)
        assert self.wire.store.revision == revision
        held = {address for addresses in self.addresses().values() for address in addresses}
        waiting = [it for it in self.services() if it["spec"]["type"] == "LoadBalancer" and self._waits(it)]
        assert not waiting or len(held) == 2, "one waits, and an address is free"

    def _waits(self, item: dict[str, Any]) -> bool:
        asks = ASKED in item["metadata"]["annotations"]
        return not asks and not self.addresses()[item["metadata"]["name"]]

    def _allocator(self) -> Allocator:
        catalog = Catalog(self._settings, facts())
        catalog.take(LISTED)
        recorder = EventRecorder("node1", catalog.uid_of, None)
        return Allocator(self._settings, self.wire, catalog, recorder)  # type: ignore[arg-type]

    async def _make_lease(self, taker: Allocator) -> None:
        try:
            await taker._lock.create(LeaseSpec(taker._identity, lease_transitions=0))
        except ApiError:
            return


class _Presence:
    sleep = staticmethod(asyncio.sleep)


@examples(500)
@given(st.integers(0, 1 << 32))
def test_no_address_is_given_twice(seed: int) -> None:
    """A seed, and not `st.randoms`: those prefer small numbers, by which little happens."""
    with patch.object(allocator, "MOST_WRITES", 1):
        asyncio.run(history(World(random.Random(seed))))


async def history(world: World) -> None:
    for _ in range(STEPS):
        await world.step()
    await world.settle()
