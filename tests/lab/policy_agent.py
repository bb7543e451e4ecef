"""The controller of network policies on a node of the lab, without the rest of an agent: none has it yet."""

import asyncio
import threading
from collections.abc import Iterable

import msgspec

from kroute.controllers.network_policy import NetworkPolicyController
from kroute.firewall.nftables.policy_tables import PolicyTables
from kroute.kernel.nftables.client import Nftables
from kroute.model.kinds import POLICY_KINDS
from kroute.model.objects import Applied, Change, Deleted, Listed, Namespace, NetworkPolicy, ObjectKey, Pod
from kroute.planning.policies.catalog import PolicyCatalog
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.controller import Shared
from kroute.settings import Settings
from tests.lab.cluster import Node
from tests.lab.namespaces import enter
from tests.lab.objects import Object

KINDS = {"Pod": Pod, "Namespace": Namespace, "NetworkPolicy": NetworkPolicy}


class PolicyAgent:
    """A thread in the node's network namespace, with an event loop on which the controller runs."""

    def __init__(self, node: Node, *, listed: bool = True) -> None:
        self._node = node
        self._catalog = PolicyCatalog(node.name)
        self._loop = asyncio.new_event_loop()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"policies of {node.name}")
        self._thread.start()
        assert self._is_ready.wait()
        if listed:
            self.list()

    def list(self) -> None:
        """Say that all objects have been seen, without which the controller waits."""
        self._take([Listed(kind.type) for kind in POLICY_KINDS])

    def apply(self, *items: Object) -> None:
        """Create or replace objects."""
        self._take([Applied(msgspec.convert(item, KINDS[item["kind"]])) for item in items])

    def delete(self, *items: Object) -> None:
        """Delete objects."""
        names = [(item["kind"], item["metadata"]) for item in items]
        self._take([Deleted(KINDS[kind], ObjectKey(one.get("namespace", ""), one["name"])) for kind, one in names])

    async def settled(self) -> None:
        """Return when all that was taken before is in the kernel."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._settled(), self._loop))

    def stop(self, *, cleanup: bool = True) -> None:
        """End the controller; without `cleanup` as a restart does."""
        self._cleanup = cleanup
        self._loop.call_soon_threadsafe(self._controller.stop)
        self._thread.join()

    def _take(self, changes: Iterable[Change]) -> None:
        self._loop.call_soon_threadsafe(self._controller.take_changes, changes)

    async def _settled(self) -> None:
        while True:
            now = self._controller.statistics()
            has_work = self._catalog.has_marked or self._controller.wake.is_set() or not self._controller.has_adopted
            if not (has_work or now.busy_for or now.failing_for):
                return
            await asyncio.sleep(0.01)

    def _run(self) -> None:
        enter(self._node.namespace.fd)
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        async with Nftables() as nftables:
            broadcaster = Broadcaster()
            shared = Shared(Settings(self._node.name), broadcaster, lambda *_: None)
            tables = PolicyTables(nftables)
            self._controller = NetworkPolicyController(shared, self._catalog, tables)
            broadcaster.publish([])
            self._is_ready.set()
            await self._controller.run()
            if self._cleanup:
                report = CleanupReport()
                await tables.remove(report)
                assert report.failed == []
