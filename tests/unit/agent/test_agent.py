"""How the agent gets from changes to published plans."""

import asyncio
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from kroute.agent import wiring as module
from kroute.agent.wiring import Agent
from kroute.firewall.backend import Choice
from kroute.firewall.nftables.names import POLICY_TABLES
from kroute.firewall.nftables.policy_rules import LOGGED
from kroute.model.node_facts import NodeInterfaces
from kroute.model.objects import Applied, Listed
from kroute.model.plan import NodePlan, Plan
from kroute.planning import weight_facts
from kroute.reconcile import broadcaster
from kroute.reconcile.broadcaster import Subscription
from kroute.runtime.source import ObjectSource
from kroute.telemetry.loop_watch import LoopWatch
from kroute.watchers.kubernetes.api import Api
from tests.apiserver import ApiServer
from tests.builders import (
    LISTED,
    NODE_IPV4,
    endpoint,
    endpoint_slice,
    node,
    service,
    settings,
)
from tests.fakes.kernel import FakeKernel
from tests.fakes.node_kernel import FakeNodeKernel
from tests.unit.planning.policies.cluster import KINDS, pod, policy
from tests.unit.watching import running

SERVICES = [service(f"s{number}", f"10.96.1.{number}") for number in range(10)]


async def nothing(_sink: object) -> None:
    """Read from a source without changes."""


def new_agent(kernel: FakeNodeKernel | None = None, firewall: str = "iptables", **more: object) -> Agent:
    interfaces = NodeInterfaces(frozenset({NODE_IPV4}), (NODE_IPV4,))
    choice = Choice(firewall, "the test says so")
    kernel = kernel or FakeNodeKernel.of(FakeKernel())
    return Agent(settings(firewall=firewall, **more), interfaces, kernel, choice, ObjectSource(nothing), LoopWatch())


async def taken(subscription: Subscription) -> list[str]:
    """Return the names of the Services whose plans come next."""
    waker = asyncio.Event()
    subscription.notify(waker)
    while not subscription.has_arrived:
        await waker.wait()
        waker.clear()
    return [key.name for key in subscription.take() if key != NodePlan.key]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 4)


async def test_nothing_is_published_before_everything_has_been_listed() -> None:
    agent = new_agent()
    subscription = agent._broadcaster.subscribe("s")
    async with running(agent._plan()):
        agent._take([*map(Applied, SERVICES), *LISTED[:2]])
        for _ in range(5):
            await asyncio.sleep(0)
        assert not subscription.has_arrived
        agent._take(LISTED[2:])
        assert len(await taken(subscription)) == len(SERVICES)


async def test_the_initial_sync_comes_as_one_though_it_is_planned_in_slices_and_changes_come_between() -> None:
    agent = new_agent()
    subscription = agent._broadcaster.subscribe("s")
    others: list[int] = []

    async def change() -> None:
        """Run beside the agent, as other tasks of the loop do."""
        while not subscription.has_arrived:
            others.append(len(agent._broadcaster.plans))
            await asyncio.sleep(0)

    async with running(agent._plan()), asyncio.TaskGroup() as group:
        agent._take([*map(Applied, SERVICES), *LISTED])
        group.create_task(change())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        agent._take([Applied(service("late", "10.96.2.1"))])
    assert set(others) == {5, 9}  # counts of plans, the node's own included: this task ran between the slices
    assert sorted(await taken(subscription)) == sorted(["late", *(it.metadata.name for it in SERVICES)])


async def test_without_any_service_the_initial_sync_is_published_too() -> None:
    agent = new_agent()
    subscription = agent._broadcaster.subscribe("s")
    async with running(agent._plan()):
        agent._take(LISTED)
        assert await taken(subscription) == []


async def test_a_change_goes_out_at_once_and_what_waits_goes_out_together() -> None:
    agent = new_agent()
    subscription = agent._broadcaster.subscribe("s")
    async with running(agent._plan()):
        agent._take([*map(Applied, SERVICES), *LISTED])
        await taken(subscription)
        agent._take([Applied(endpoint_slice("e3", "10.244.1.3", of="s3"))])
        assert await taken(subscription) == ["s3"]
        for number in (1, 2, 3):
            agent._take([Applied(endpoint_slice(f"e{number}", "10.244.1.9", of=f"s{number}"))])
        assert await taken(subscription) == ["s1", "s2", "s3"]


async def test_while_very_many_plans_are_published_changes_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcaster, "GATHERED", 60.0)
    agent = new_agent()
    subscription = agent._broadcaster.subscribe("s")
    async with asyncio.timeout(60), running(agent._plan()):
        agent._take([*map(Applied, SERVICES), *LISTED])
        await taken(subscription)
        for number in (1, 2):
            agent._take([Applied(endpoint_slice(f"e{number}", "10.244.1.9", of=f"s{number}"))])
            assert await taken(subscription) == [f"s{number}"]  # ten plans are not many
            monkeypatch.setattr(broadcaster, "COUNTED", 0.0)
            monkeypatch.setattr(broadcaster, "PLANS_A_SECOND", 0)
        monkeypatch.setattr(broadcaster, "COUNTED", 60.0)
        agent._take([Applied(endpoint_slice("e3", "10.244.1.9", of="s3"))])
        for _ in range(10):
            await asyncio.sleep(0)
        assert not subscription.has_arrived


async def test_what_is_read_after_a_plan_does_not_count_as_read_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = new_agent()
    subscription = agent._broadcaster.subscribe("s")
    steps: list[str] = []
    publish, read, planned = agent._publish, agent._changes.read, agent._changes.planned
    monkeypatch.setattr(agent._changes, "read", lambda changes: (steps.append("read"), read(changes)))
    monkeypatch.setattr(agent._changes, "planned", lambda: (steps.append("planned"), planned()))
    async with running(agent._plan()):
        agent._take([*map(Applied, SERVICES), *LISTED])
        await taken(subscription)
        steps.clear()
        more = [[Applied(endpoint_slice(f"e{number}", "10.244.1.9", of=f"s{number}"))] for number in (1, 2)]

        def publish_before_more_is_read(plans: Sequence[Plan]) -> None:
            publish(plans)
            if more:
                asyncio.get_running_loop().call_soon(agent._take, more.pop())

        monkeypatch.setattr(agent, "_publish", publish_before_more_is_read)
        agent._take(more.pop())
        assert [await taken(subscription), await taken(subscription)] == [["s2"], ["s1"]]
        await asyncio.sleep(0)
        assert steps == ["read", "planned"] * 2


async def test_a_small_change_behind_a_large_one_does_not_wait_for_its_subscribers() -> None:
    """The slices of a large change are published one by one, so a controller begins with the first."""
    agent = new_agent()
    subscription = agent._broadcaster.subscribe("s")
    async with running(agent._plan()):
        agent._take([*map(Applied, SERVICES), *LISTED])
        await taken(subscription)
        agent._take_interfaces(NodeInterfaces(frozenset({"192.168.123.7"}), ("192.168.123.7",)))
        agent._take([Applied(service("late", "10.96.2.1"))])
        rounds = []
        while "late" not in [name for names in rounds for name in names]:
            rounds.append(await taken(subscription))
        assert [len(names) for names in rounds] == [4, 4, 3]


async def test_what_nodes_change_in_quick_succession_goes_out_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_facts, "PAUSE", 0.05)
    agent = new_agent()
    subscription = agent._broadcaster.subscribe("s")
    near = service("near", annotations={"kroute.io/locality": "prefer-node"})
    pods = [endpoint("10.244.1.1", on="node1"), endpoint("10.244.1.2", on="node2")]
    async with asyncio.timeout(60), running(agent._plan()):
        agent._take([Applied(near), Applied(endpoint_slice("near-1", *pods, of="near")), *LISTED])
        assert await taken(subscription) == ["near"]
        for ready in (True, False):  # the second one within the pause; nothing else happens then
            agent._take([Applied(node(name="node2", ready=ready))])
            assert await taken(subscription) == ["near"]


async def test_a_node_is_taken_over_in_order_and_nothing_is_removed_before_kroute_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, did, is_live = new_agent(), list[str](), asyncio.Event()

    class Steps:
        async def adopt(self) -> None:
            did.append("adopt")

        async def remove(self) -> None:
            did.append("remove")

    async def turn(**_: object) -> frozenset[str]:
        return frozenset({"kube-proxy"})

    async def run() -> None:
        did.append("run")
        await asyncio.Event().wait()

    monkeypatch.setattr(agent, "_take_over", lambda _names: Steps())
    monkeypatch.setattr(agent._ownership, "turn", turn)
    monkeypatch.setattr(agent._ownership, "follow_rivals", nothing_of_rivals)
    monkeypatch.setattr(agent._controllers, "run", run)
    monkeypatch.setattr(agent._controllers, "live", is_live.wait)
    async with running(agent._serve()):
        for _ in range(10):
            await asyncio.sleep(0)
        assert did == ["adopt", "run"]
        is_live.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert did == ["adopt", "run", "adopt", "remove"]


async def nothing_of_rivals(*_: object) -> None:
    """Look for no rivals."""


ISOLATED = (pod("web", "10.244.1.5", "fd00:244:1::5", app="web"), policy())
"""A pod of this node, and a policy that lets nobody in."""


async def test_network_policies_are_written_without_services_and_services_planned_without_policies() -> None:
    kernel = FakeKernel()
    agent = new_agent(await FakeNodeKernel.of(kernel).open(), "nftables", network_policies=True)
    controller = agent._controllers.optional.network_policy
    assert controller is not None
    subscription = agent._broadcaster.subscribe("s")
    async with running(agent._plan()):
        agent._take([*map(Applied, SERVICES), *LISTED])
        assert len(await taken(subscription)) == len(SERVICES)
    agent._take([*(Applied(msgspec.convert(it, KINDS[it["kind"]])) for it in ISOLATED), *map(Listed, KINDS.values())])
    await controller.step()
    assert kernel.nft.tables.keys() == set(POLICY_TABLES.values())
    assert controller.name in {task.name for task in agent._controllers.kernel_writers}
    assert agent._statistics().controllers[controller.name].writes > 0
    controller.wake.clear()
    agent._take([Applied(service("late", "10.96.2.1"))])
    assert not controller.wake.is_set(), "a Service is nothing to it"


async def test_nothing_is_loaded_for_network_policies_where_they_are_not_enforced() -> None:
    assert new_agent(None, "nftables")._controllers.optional.network_policy is None


@pytest.mark.parametrize(("is_set", "has_api"), [(False, True), (True, False), (True, True)])
async def test_only_an_agent_that_may_has_an_allocator(*, is_set: bool, has_api: bool, tmp_path: Path) -> None:
    async with ApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        given = settings(firewall="iptables", kubeconfig=kubeconfig, allocate_load_balancer_ips=is_set)
        async with await Api.open(given) as api:
            source = ObjectSource(nothing, api if has_api else None)
            interfaces = NodeInterfaces(frozenset({NODE_IPV4}), (NODE_IPV4,))
            choice = Choice("iptables", "the test says so")
            agent = Agent(given, interfaces, FakeNodeKernel.of(FakeKernel()), choice, source, LoopWatch())
            assert (agent._allocator is not None) == (is_set and has_api)


@pytest.mark.parametrize(("is_set", "rules"), [(False, 0), (True, 2)])
async def test_rules_log_what_policies_refuse_where_the_setting_says_so(*, is_set: bool, rules: int) -> None:
    """Of two families, of a pod that is isolated in one direction."""
    kernel = FakeKernel()
    settings = {"network_policies": True, "policy_log": is_set}
    agent = new_agent(await FakeNodeKernel.of(kernel).open(), "nftables", **settings)
    controller = agent._controllers.optional.network_policy
    assert controller is not None
    agent._take([*(Applied(msgspec.convert(it, KINDS[it["kind"]])) for it in ISOLATED), *map(Listed, KINDS.values())])
    await controller.step()
    found = [rule for table in kernel.nft.tables.values() for _, rule in chain.from_iterable(table.rules.values())]
    assert sum(rule.comment == LOGGED for rule in found) == rules
    policies = agent._observation._parts.policies
    assert policies is not None
    assert (policies.refusals is not None) == is_set
