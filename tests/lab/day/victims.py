"""Those whom the day must not hurt: calls, datagrams and open connections to Services that nobody may break."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self

from tests.lab import objects
from tests.lab.day.stage import WITNESS, Stage
from tests.lab.day.troubles import ROLLING
from tests.lab.hosts import Host, OpenStream
from tests.lab.kernel_state import connections_ever
from tests.lab.load import Load, Way, steady_load
from tests.lab.namespaces import CommandError

VIPS = ("10.254.0.10", "fd00:10:254::10")
ROLLING_VIPS = ("10.254.0.11", "fd00:10:254::11")
EJECTABLE_VIP = "10.254.0.12"
DIRECTED = ("192.168.123.201", "fd00:192:168:123::201")
NODE_PORT = 30080
STREAMS = 3
"""On each way."""
PER_SECOND = 10
TRIES = 3
"""Of a datagram, as a resolver repeats its question."""
WEB = {"TCP": 8080, "UDP": 5353}


class Victims:
    """They call for the length of `async with Victims.of(stage)`; `verdict` says what has gone wrong."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        world, client = stage.world, stage.cluster.client
        node2, witness = stage.cluster.node("node2"), stage.cluster.node(WITNESS)
        self.ways = [
            *(Way(world.visitor, vip, 8080) for vip in (*VIPS, *ROLLING_VIPS, EJECTABLE_VIP)),
            *(Way(node2, vip, 8080) for vip in VIPS),
            *(Way(world.web[2], vip, 8080) for vip in ROLLING_VIPS),
            *(Way(client, vip, NODE_PORT) for vip in (witness.ip, witness.ip6)),
            *(Way(client, vip, 8080) for vip in DIRECTED),
        ]
        self.load = Load()
        self.streams: dict[tuple[Way, int], OpenStream] = {}
        self.datagrams = 0
        self.lost: list[str] = []

    @staticmethod
    def deploy(stage: Stage) -> None:
        """Have the victims' Services."""
        web = stage.world.web
        stage.put(
            objects.service("web", *VIPS, ports=WEB, node_ports={"TCP": NODE_PORT}, externalIPs=list(DIRECTED)),
            *objects.endpoint_slices("web", web, WEB),
            objects.service(ROLLING, *ROLLING_VIPS),
            *objects.endpoint_slices(ROLLING, web),
            objects.service("ejectable", EJECTABLE_VIP, annotations={"kroute.io/ejection": "on"}),
            *objects.endpoint_slices("ejectable", web)[:1],
        )

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, stage: Stage) -> AsyncIterator[Self]:
        """Victims that call, keep connections open, and ask by UDP."""
        victims = cls(stage)
        for way in victims.ways:
            for number in range(STREAMS):
                stream = await way.client.open_stream(way.address, way.port, interval=1.0, patience=60)
                victims.streams[way, number] = stream
        asking = [asyncio.create_task(victims._ask(stage.world.visitor, vip)) for vip in VIPS]
        try:
            async with steady_load(victims.ways, PER_SECOND) as victims.load:
                yield victims
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, client: Host, vip: str) -> None:
        """Ask by UDP, again and again."""
        while True:
            errors: list[str] = []
            for _ in range(TRIES):
                try:
                    await client.udp(vip, 5353, timeout=5)
                except OSError as error:
                    errors.append(repr(error))
                else:
                    break
            else:
                self.lost.append(f"{client} asked {vip} 5353 by UDP: {errors}")
            self.datagrams += 1
            await asyncio.sleep(0.5)

    def broken(self) -> list[str]:
        """A sentence for each open connection that has ended."""
        return [f"a connection on {way}: {one.failure}" for (way, _), one in self.streams.items() if one.failure]

    def uncounted(self) -> list[str]:
        """A sentence for each virtual server that knows of fewer connections than it has had: it was made anew."""
        stage, found = self._stage, []
        if not stage.has_counts:
            return []
        for name, host in (("node1", stage.world.visitor), ("node2", stage.cluster.node("node2"))):
            for vip in VIPS:
                way = Way(host, vip, 8080)
                had = self.load.calls[way] + STREAMS
                at = f"[{vip}]:8080" if ":" in vip else f"{vip}:8080"
                try:
                    counted = connections_ever(stage.cluster.node(name).namespace, at)
                except CommandError:  # it is gone
                    counted = 0
                if counted < had:
                    found.append(f"{name}: {at} has counted {counted} connections of {had}")
        return found

    async def leave(self) -> None:
        """End the open connections, with a reset: IPVS forgets them soon."""
        for stream in self.streams.values():
            with contextlib.suppress(AssertionError, OSError):  # it has broken before
                await stream.close(reset=True)
