"""A set that is really full: it grows, then ports that find no room stay closed if they are restricted, and say so."""

import asyncio
import re
from pathlib import Path

import msgspec
import pytest

from kroute.controllers import node_controllers
from kroute.controllers.node_controllers import NodeControllers
from kroute.firewall.iptables.firewall import IptablesFirewall
from kroute.kernel.node_kernel import NodeKernel, open_kernel
from kroute.model.objects import ObjectKey
from kroute.model.plan import AddressSet, Plan, Problem, ServicePlan, SetEntry
from kroute.reconcile.broadcaster import Broadcaster
from kroute.settings import Settings
from tests.kernel.contracts_firewall import SMALL
from tests.kernel.nodes import NODE_IP, NODE_IP6, RealNode, run
from tests.lab.deployment import eventually
from tests.unit.fake_node import node_plan, plan, server

pytestmark = pytest.mark.legacy

RESTRICTED = "KROUTE-RESTRICTED"
BELOW, ABOVE = SMALL.first + 36, SMALL.most - SMALL.first
"""Ports of two Services: those of the first make the set grow, those of both are too many for the largest set."""


def balanced(name: str, generation: int, address: str, ports: int) -> ServicePlan:
    """Return a Service with so many ports, all for clients in 192.0.2.0/24 only."""
    of_all = plan(
        name, generation, *(server(address, port, "10.128.0.1") for port in range(1, ports + 1)), source=NODE_IP
    )
    keys = [(address, 6, port) for port in range(1, ports + 1)]
    own = [SetEntry(AddressSet.RESTRICTED, key) for key in keys]
    own += [SetEntry(AddressSet.SOURCE_RANGE, (*key, "192.0.2.0/24")) for key in keys]
    kept = [entry for entry in of_all.set_entries if entry.set is AddressSet.VIP]  # other sets are not to be full
    return msgspec.structs.replace(of_all, set_entries=tuple(sorted((*kept, *own))))


class Run:
    """One run of all controllers, whose sets hold no more than `SMALL`."""

    def __init__(self, kernel: NodeKernel, state_dir: Path) -> None:
        self.broadcaster = Broadcaster()
        self.problems: list[str] = []
        settings = Settings("node3", state_dir=state_dir, firewall="iptables", resync_period=3600.0)
        self.controllers = NodeControllers(settings, self.broadcaster, self._report, kernel)

    def fill(self) -> tuple[int, int, int]:
        fills = {it.set: it for it in self.controllers.set_fills()}
        assert RESTRICTED in fills, "it has not been read yet"
        found = fills[RESTRICTED]
        return found.entries, found.capacity, found.limit

    def is_full(self) -> None:
        assert self.fill() == (SMALL.most,) * 3

    def has_complained_of_the_second(self) -> None:
        assert "default/second SourceRangesNotEnforced" in self.problems

    def _report(self, key: ObjectKey, problem: Problem) -> None:
        self.problems.append(f"{key} {problem.reason}")


def in_the_kernel() -> tuple[int, int]:
    """Return the set's entries and its maxelem, as ipset prints them."""
    header = run(f"ipset list -t {RESTRICTED}")
    numbers = [re.search(pattern, header) for pattern in (r"Number of entries: (\d+)", r"maxelem (\d+)")]
    entries, most = (int(found[1]) for found in numbers if found is not None)
    return entries, most


def served(address: str) -> int:
    """Return how many virtual servers the address has, if it is bound."""
    is_bound = f" {address}/" in run("ip -o address show dev kube-ipvs0")
    return run("ipvsadm -Ln").count(f"TCP  {address}:") if is_bound else 0


async def reached(count: int, address: str) -> None:
    def has_so_many() -> None:
        assert served(address) == count

    await eventually(has_so_many, within=30)


async def test_a_full_set_grows_then_closes_what_finds_no_room_and_both_numbers_are_those_of_the_kernel(
    node: RealNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small_firewall(settings: Settings, kernel: NodeKernel) -> IptablesFirewall:
        return IptablesFirewall(settings, kernel.ipset, kernel.xtables, room=SMALL)

    monkeypatch.setattr(node_controllers, "firewall_of", small_firewall)
    first, second = balanced("first", 1, "203.0.113.1", BELOW), balanced("second", 2, "203.0.113.2", ABOVE)
    free = plan("free", 3, server("10.96.0.1", 80, "10.128.0.1"), source=NODE_IP)
    plans: list[Plan] = [node_plan(0, ipv4=NODE_IP, ipv6=NODE_IP6), first]
    async with open_kernel() as kernel:
        one = Run(kernel, tmp_path)
        async with one.controllers:
            running = asyncio.create_task(one.controllers.run())
            one.broadcaster.publish(plans)
            await reached(BELOW, "203.0.113.1")
            assert one.fill() == (BELOW, SMALL.after(SMALL.first), SMALL.most)
            assert one.fill()[:2] == in_the_kernel()
            one.broadcaster.publish([second, free])
            await reached(1, "10.96.0.1")
            await eventually(one.has_complained_of_the_second)
            one.is_full()
            assert one.fill()[:2] == in_the_kernel()
            assert (served("203.0.113.1"), served("203.0.113.2")) == (BELOW, 0)
            one.controllers.stop()
            await running
        after = Run(kernel, tmp_path)
        async with after.controllers:
            running = asyncio.create_task(after.controllers.run())
            after.broadcaster.publish([*plans, second, free])
            await reached(BELOW, "203.0.113.1")
            await eventually(after.is_full)
            after.broadcaster.publish([ServicePlan(first.key, 4)])
            await reached(ABOVE, "203.0.113.2")
            assert (after.fill()[0], after.fill()[1]) == in_the_kernel() == (ABOVE, SMALL.most)
            after.controllers.stop()
            await running
