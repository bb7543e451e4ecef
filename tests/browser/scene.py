"""A node of a shop's cluster for the status page: what the tests look at, and what the pictures of the pages show."""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

from kroute.base import logs
from kroute.kernel.ipvs.objects import RealServerState, Traffic, VirtualServerOptions, VirtualServerState
from kroute.model.objects import Applied, EndpointPort, Service
from kroute.model.plan import ServicePlan
from tests.builders import LISTED, endpoint, endpoint_slice, node, port, service
from tests.unit.observed import Observed

SCHEDULER = {"kroute.io/scheduler": "wlc"}
STEP = 0.05
"""Seconds between two steps of the traffic."""

SERVICES: tuple[tuple[Service, int, int], ...] = (
    (service("api", "10.96.12.7", namespace="shop", ports=[port(443, "https"), port(80, "http")],
             annotations=SCHEDULER), 4, 900),
    (service("cart", "10.96.40.2", namespace="shop", annotations={"kroute.io/scheduler": "fastest"}), 2, 120),
    (service("checkout", "10.96.40.3", namespace="shop", affinity="ClientIP"), 3, 240),
    (service("search", "10.96.77.1", namespace="shop", ports=[9200]), 3, 610),
    (service("web", "10.96.0.20", namespace="shop", kind="NodePort", ports=[port(80, node_port=30080)]), 6, 2300),
    (service("reports", "10.96.90.4", namespace="back-office"), 0, 0),
    (service("kube-dns", "10.96.0.10", namespace="kube-system", ports=[port(53, "dns", "UDP"), port(53, "tcp")]), 2,
     4200),
    (service("kubernetes", "10.96.0.1", ports=[443]), 1, 15),
)  # fmt: skip
"""Each Service with its number of endpoints, and its packets a second in one direction."""


LOG = (
    ("info", "real_server.added", "service=shop/web virtual_server=TCP 10.96.0.20:80 address=10.244.2.45 port=8080"),
    ("info", "real_server.draining", "service=shop/web virtual_server=TCP 10.96.0.20:80 address=10.244.2.90 port=8080"),
    ("warning", "service.problem", "service=shop/cart reason=InvalidAnnotation"),
    ("info", "vip.bound", "service=shop/search vip=10.96.77.1"),
    ("info", "kroute.ready", "services=8"),
)
"""Lines of the log, the newest first."""


def observed() -> Observed:
    """An agent that serves these Services, and the kernel of its node."""
    made = Observed(firewall="nftables")
    made.catalog.take([Applied(node(("InternalIP", "192.168.123.250"))), *_objects(), *LISTED])
    made.broadcaster.publish(made.catalog.plan_marked())
    for queue in made.queues:
        queue.take()
    for plan in made.broadcaster.services.values():
        _into_kernel(made, plan)
    for level, event, details in reversed(LOG):
        logs.RECENT.remember({"level": level, "event": event, **dict(_fields(details))}, time.time())
    for counters in made.workers.counters.values():
        counters.last_resync, counters.writes = time.time() - 12, 40
    return made


def _objects() -> Iterator[Applied]:
    """Each Service and its slice, with endpoints on three nodes; one of `web` is not ready."""
    for number, (item, count, _) in enumerate(SERVICES):
        members = [endpoint(f"10.244.{it % 3}.{10 * number + it}", on=f"node{it % 3 + 1}") for it in range(count)]
        if item.metadata.name == "web":
            members.append(endpoint("10.244.1.99", ready=False, on="node2"))
        name, namespace = item.metadata.name, item.metadata.namespace
        ports = [EndpointPort(name=it.name, port=8080, protocol=it.protocol) for it in item.spec.ports]
        yield Applied(item)
        yield Applied(endpoint_slice(f"{name}-1", *members, of=name, namespace=namespace, ports=ports))


def _fields(details: str) -> Iterator[tuple[str, str]]:
    names = re.findall(r"(\w+)=", details)
    values = re.split(r" ?\w+=", details)[1:]
    yield from zip(names, values, strict=True)


def _into_kernel(made: Observed, plan: ServicePlan) -> None:
    """Give the kernel what a plan names, with connections; one real server of the first Service drains."""
    for server in plan.virtual_servers:
        if not server.real_servers:
            continue
        reals = {
            (it.address, it.port): RealServerState(it.weight, 3 + 2 * number, 5 * number)
            for number, it in enumerate(server.real_servers)
        }
        if plan.key.name == "web":
            reals["10.244.2.90", 8080] = RealServerState(0, 7, 0)
        made.kernel.table[server.key] = VirtualServerState(VirtualServerOptions(server.scheduler), reals)
        made.kernel.passed[server.key] = Traffic(100, 1000, 1000, 80_000, 900_000)


@asynccontextmanager
async def busy(made: Observed) -> AsyncIterator[None]:
    """Let packets pass the Services for the length of the block, more and less of them by turns."""

    async def pass_packets() -> None:
        packets = {item.metadata.name: count for item, _, count in SERVICES}
        plans = list(made.broadcaster.services.values())
        paces = {server.key: packets[plan.key.name] for plan in plans for server in plan.virtual_servers}
        for share in itertools.cycle((0.8, 1.0, 1.3, 1.1, 0.7)):
            for key, before in list(made.kernel.passed.items()):
                more = max(1, int(paces[key] * STEP * share))
                added = (max(1, more // 8), more, more, more * 90, more * 740)
                made.kernel.passed[key] = Traffic(*map(sum, zip(before, added, strict=True)))
            await asyncio.sleep(STEP)

    passing = asyncio.create_task(pass_packets())
    try:
        yield
    finally:
        passing.cancel()
        with suppress(asyncio.CancelledError):
            await passing
