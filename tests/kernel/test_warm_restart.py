"""A restart without changes: every request that writes would be counted, and none is sent."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kroute.controllers.node_controllers import NodeControllers
from kroute.firewall.backend import node_clients
from kroute.kernel.node_kernel import NodeKernel, open_kernel
from kroute.model.objects import ObjectKey
from kroute.model.plan import NodePlan, Persistence, Plan, Problem, Protocol, RealServer, ServicePlan, VirtualServer
from kroute.reconcile.broadcaster import Broadcaster
from kroute.settings import Settings
from tests.kernel.nodes import HANG, NODE_IP, NODE_IP6, RealNode, run
from tests.lab.firewall import NFTABLES, backend, has_legacy
from tests.unit.fake_node import node_plan, plan, server

SERVICES = 300
SNAPSHOT = (
    "ipvsadm -Sn",
    "ip -d address show",
    "ip route show table all",
    "ip -6 route show table all",
    "nft list ruleset",
    *(("ipset save -sorted", "iptables-legacy-save", "ip6tables-legacy-save") if has_legacy() else ()),
)
SETS = "nftables" if backend() == NFTABLES else "ipset"
"""The client that writes set entries."""
WRITERS = ("links", "ipvs", "addresses", "routes", SETS, "conntrack")


def service(number: int) -> ServicePlan:
    """Return a Service of two families and two protocols. Every tenth has options that procfs does not show."""
    ipv4, ipv6 = f"10.96.{number // 200}.{number % 200 + 1}", f"fd96::{number + 1:x}"
    reals = [f"10.128.{number // 200}.{each}" for each in range(1, 6)]
    servers = [
        server(ipv4, 80, *reals),
        server(ipv6, 80, f"fd28::{number + 1:x}"),
        server(ipv4, 53, *reals[:2], protocol=Protocol.UDP),
    ]
    if not number % 10:
        servers[0] = server(ipv4, 80, *reals, scheduler="sh", flags=0x8, persistence=Persistence(600, 24))
    return plan(f"web-{number}", 1, *servers, source=NODE_IP, source6=NODE_IP6)


def snapshot() -> dict[str, list[str]]:
    """Return all of the kernel's state that kroute may write, without times and packet counters."""
    return {
        command: sorted(line for line in run(command).splitlines() if not line.startswith(("#", ":")))
        for command in SNAPSHOT
    }


@asynccontextmanager
async def serving(plans: Sequence[Plan], state_dir: Path) -> AsyncIterator[tuple[NodeControllers, NodeKernel]]:
    """The controllers of one run, once every plan is in the kernel and no write is left to do."""
    settings = Settings("node3", state_dir=state_dir, firewall=backend(), resync_period=3600.0)
    broadcaster = Broadcaster()

    def report(key: ObjectKey, problem: Problem) -> None:
        pytest.fail(f"{key}: {problem}")

    async with (
        open_kernel(only=node_clients(settings)) as kernel,
        NodeControllers(settings, broadcaster, report, kernel) as controllers,
    ):
        running = asyncio.create_task(controllers.run())
        broadcaster.publish(plans)
        async with asyncio.timeout(HANG):
            await controllers.live()
        for _ in range(10):  # time for any write that follows the last plan; a stall takes one turn of it
            await asyncio.sleep(0.1)
        yield controllers, kernel
        controllers.stop()
        await running


async def test_a_restart_with_nothing_to_do_writes_nothing(node: RealNode, tmp_path: Path) -> None:
    plans: list[Plan] = [node_plan(0, "10.128.0.0/16", ipv4=NODE_IP, ipv6=NODE_IP6), *map(service, range(SERVICES))]
    async with serving(plans, tmp_path) as (controllers, kernel):
        assert kernel.sockets["ipvs"].transactions > 0
        written = {name: counters.writes for name, counters in controllers.statistics().items()}
    assert written["service_proxy"] >= SERVICES * (3 + 8 + 2)
    before, ledger = snapshot(), sorted((tmp_path / "ledger").read_bytes().splitlines())
    assert len(before["ipvsadm -Sn"]) == SERVICES * (3 + 8)

    async with serving(plans, tmp_path) as (controllers, kernel):
        assert {name: kernel.sockets[name].transactions for name in WRITERS} == dict.fromkeys(WRITERS, 0)
        counters = controllers.statistics().values()
        assert [(each.writes, each.repairs, each.failures) for each in counters] == [(0, 0, 0)] * 4
    assert snapshot() == before
    assert sorted((tmp_path / "ledger").read_bytes().splitlines()) == ledger


async def test_a_restart_after_one_change_writes_that_change(node: RealNode, tmp_path: Path) -> None:
    plans: list[Plan] = [node_plan(0, ipv4=NODE_IP, ipv6=NODE_IP6), *map(service, range(20))]
    async with serving(plans, tmp_path):
        pass
    changed = service(7)
    first = changed.virtual_servers[0]
    more = VirtualServer(
        first.key, first.scheduler, first.flags, None, (*first.real_servers, RealServer("10.128.9.9", 8080))
    )
    plans[8] = plan("web-7", 2, more, *changed.virtual_servers[1:], source=NODE_IP, source6=NODE_IP6)
    assert isinstance(plans[0], NodePlan)
    async with serving(plans, tmp_path) as (controllers, kernel):
        sockets = kernel.sockets
        assert {name: sockets[name].messages for name in ("ipvs", SETS) if sockets[name].transactions} != {}
        assert sockets["ipvs"].transactions == 1
        assert sockets["addresses"].transactions == sockets["routes"].transactions == 0
        assert controllers.statistics()["service_proxy"].writes == 1
