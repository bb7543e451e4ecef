"""The day with kube-proxy on the nodes in kroute's place, and nothing on the directors' machines.

The moments and the choices of the troubles stay the same: a kill that would hit a director hits nothing. What the
directors' addresses get, the client sends to a node instead. What ends by itself is started again, as a kubelet does.
"""

import asyncio
from functools import partial
from pathlib import Path

from tests.lab import firewall
from tests.lab.day.stage import WITNESS, Stage
from tests.lab.day.victims import DIRECTED, Victims
from tests.lab.deployment import eventually
from tests.lab.kube_proxy_process import KubeProxy
from tests.lab.objects import Object
from tests.lab.world import World

ENTRY = "node1"
"""The node to which the client sends what is for the directors' addresses; its proxy is killed like the others."""
MORNING = 30
"""Native seconds until a proxy is ready for the first time."""
EVENING = 20
"""Native seconds until a proxy is ready again; one whose watch is silent may wait for minutes."""
LOOKS_EVERY = 1.0
"""Seconds between two looks at which proxies have ended."""


class PeerStage(Stage):
    """A stage with the real kube-proxy in a mode on each node."""

    attacks_nothing = frozenset({"odd-flags", "bundle", "tidied-directory"})

    def __init__(self, world: World, mode: str, program: Path) -> None:
        super().__init__(world, firewall.backend())
        self.has_counts = mode == "ipvs"
        self.proxies = {name: KubeProxy(node, mode, self.api, program) for name, node in self.cluster.nodes.items()}
        self._supervision: asyncio.Task[None] | None = None

    @property
    def witness(self) -> KubeProxy:  # type: ignore[override]
        return self.proxies[WITNESS]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.proxies)

    @property
    def mortals(self) -> tuple[str, ...]:
        return tuple(name for name in super().names if name != WITNESS)

    def put(self, *items: Object) -> None:
        """Create or replace objects, with those of a real API server's defaults without which a proxy panics."""
        for item in items:
            if item["kind"] == "Service":
                item["spec"].setdefault("internalTrafficPolicy", "Cluster")
                if item["spec"].get("sessionAffinity") == "ClientIP":
                    item["spec"]["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": 10_800}}
        super().put(*items)

    async def start(self, *_names: str, wait: bool = True) -> None:
        """Give nodes and client the routes that they need, and start the proxies."""
        client, entry = self.cluster.client, self.cluster.node(ENTRY)
        for address, gateway in zip(DIRECTED, (entry.ip, entry.ip6), strict=True):
            client.run("ip", "route", "add", address, "via", gateway)
        for name, proxy in self.proxies.items():
            for gateway in (client.ip, client.ip6):  # without a route a node does not even send to a VIP
                self.cluster.node(name).run("ip", "route", "add", "default", "via", gateway)
            proxy.launch()
        self._supervision = asyncio.create_task(self._supervise())
        for name, proxy in self.proxies.items() if wait else ():
            try:
                await proxy.ready(within=MORNING)
            except AssertionError as error:
                error.add_note(f"{name}: {proxy.log.read_text(errors='replace')[-3000:]}")
                raise
        for way in Victims(self).ways if wait else ():  # ready is said before all is served
            await eventually(partial(way.client.http, way.address, way.port), within=MORNING)

    async def rests(self, name: str) -> None:
        """Wait for a while in the evening until the proxy of a node is ready. Adds to the wrongs if it is not."""
        try:
            await self.proxies[name].ready(within=EVENING)
        except (AssertionError, OSError) as error:
            self.wrongs.append(f"the proxy of {name} is not ready in the evening: {error!r}, {self._said(name)}")

    async def kill(self, name: str) -> None:
        """Kill the proxy of a node, and start it again without waiting for it."""
        if name in self.proxies:
            self.proxies[name].close()
            self._launch(name)

    async def cleanup(self) -> None:
        """End the proxies. What they have written stays: it goes with the nodes."""
        if self._supervision is not None:
            self._supervision.cancel()
        for proxy in self.proxies.values():
            proxy.close()

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(LOOKS_EVERY)
            for name in [name for name, proxy in self.proxies.items() if not proxy.running]:
                self.wrongs.append(f"the proxy of {name} ended by itself: {self._said(name)}")
                self._launch(name)

    def _said(self, name: str) -> str:
        return "".join(self.proxies[name].log.read_text(errors="replace").splitlines()[-1:])

    def _launch(self, name: str) -> None:
        self.proxies[name].log.write_bytes(b"")
        self.proxies[name].launch()
