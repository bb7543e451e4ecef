"""kroute is killed while policies change: no packet passes that the old and the new policies refuse.

A packet has two ends, each of which is judged by the pod's own node. What one of them refuses before and after a
change it refuses all the time: at every moment between two writes, in whatever state a kill leaves the node, and for as
long as the API server is away. Between two writes, what the policies allow before and after passes, too.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial

import pytest

from kroute.firewall.backend import BACKENDS
from kroute.kernel.node_kernel import open_kernel
from tests.conformance.policy_cases import WORLD, in_x, of_namespace
from tests.lab.feed import ApiFeed, control_plane
from tests.lab.firewall import backend
from tests.lab.objects import Object, identity
from tests.lab.reachability import pod_object
from tests.lab.thoroughness import drawn, is_thorough, seed
from tests.scenarios.one_node import OneNode, one_staged, policy_firewall, restore
from tests.scenarios.policy_stage import Stage, described, refused_throughout, staged
from tests.scenarios.random_policies import KINDS, RandomPolicies
from tests.scenarios.test_network_policies import SETTINGS
from tests.unit.planning.policies import cluster
from tests.unit.planning.policies.cluster import ingress

pytestmark = [
    pytest.mark.each_firewall,
    # The thread of the lab's traffic does nothing while a child is forked.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

STORIES, SHARE = (4, 1) if is_thorough() else (1, 8)
"""Stories of random edits, and one of so many of their writes at which kroute is killed."""
EDITS_OF_A_STORY = 3
WIDE, NARROW = (
    [*WORLD, pod_object("x/d"), in_x("deny", policyTypes=["Ingress"]), edited]
    for edited in (
        in_x("edited", ingress(of_namespace("y"))),
        in_x("edited", ingress(of_namespace("z"), selector={"matchLabels": {"pod": "d"}})),
    )
)
"""One edit takes x/a out of a policy, or puts it in, and changes whom that lets in: never may z call x/a, which another
policy isolates, too. x/d stays in its group."""
WEIGHTS = 1, 1, 6
"""How many of the edits are of Pods, of Namespaces, and of NetworkPolicies."""
PARTS, EDITS = (6, 50) if is_thorough() else (1, 12)
"""Edits in each part. A test's end is awaited for a quarter of an hour."""
LONGEST_LIFE, LONGEST_ABSENCE = 1.5, 3.0
"""Seconds: of an agent that is to be killed, and of the API server."""


# ---- every write -------------------------------------------------------------------------------------------------


async def change(before: list[Object], after: list[Object]) -> None:
    """Write the change, as an agent does while it runs."""
    plan = cluster.Cluster(*before)
    remaining = {identity(item) for item in after}
    async with open_kernel(only=BACKENDS[backend()].clients) as kernel:
        firewall = policy_firewall(kernel)
        assert await firewall.restore(plan.catalog.groups(), plan.catalog.pods) == []
        plan.delete(*(item for item in before if identity(item) not in remaining))
        await firewall.write(plan.after(*(item for item in after if item not in before)))


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNode]:
    with one_staged(tmp_path_factory.mktemp("writes")) as made:
        yield made


each_manner = pytest.mark.parametrize("manner", ["running", "restarting"])
"""The change is written by the agent that had planned the old policies, or by one that starts after it."""


@each_manner
@pytest.mark.parametrize("part", range(1, STORIES + 1))
def test_a_kill_at_any_write_leaves_no_packet_through_that_old_and_new_policies_refuse(
    one_node: OneNode, part: int, manner: str, record_property: Callable[[str, object], None]
) -> None:
    """From no policy to some, through edits of one object each, and back."""
    by, killed, count = seed(), 0, 0
    print(f"seed {by}")
    for number, (before, after) in enumerate(itertools.pairwise(story(f"{by} {part}"))):
        writes = kill(one_node, before, after, manner, one_of=SHARE, by=f"{by} {part} {number}")
        killed, count = killed + writes[0], count + writes[1]
    assert killed
    record_property("measured", f"a change of policies is killed at {killed} of {count} writes, {manner}, seed {by}")


def story(by: str) -> list[list[Object]]:
    """All objects before and after each of its edits. At first a pod of the node is isolated, so there are writes."""
    random_policies = RandomPolicies(by)
    while not cluster.Cluster(*random_policies.objects.values()).catalog.pods:
        random_policies.draw()
    states = [list(random_policies.objects.values())]
    for kind in random.Random(by).choices(KINDS, WEIGHTS, k=EDITS_OF_A_STORY):
        random_policies.edit(kind)
        states.append(list(random_policies.objects.values()))
    open_before, open_after = (
        [item for item in state if item["kind"] != "NetworkPolicy"] for state in (states[0], states[-1])
    )
    return [open_before, *states, open_after]


@pytest.mark.drawn(4)
@each_manner
@pytest.mark.parametrize(("before", "after"), [(WIDE, NARROW), (NARROW, WIDE)], ids=["leaves", "enters"])
def test_a_kill_in_an_edit_leaves_a_pod_closed_that_changes_groups(
    one_node: OneNode, before: list[Object], after: list[Object], manner: str
) -> None:
    kill(one_node, before, after, manner, one_of=1, by=manner)
    one_node.restore(WORLD)


def kill(
    one_node: OneNode, before: list[Object], after: list[Object], manner: str, *, one_of: int, by: str
) -> tuple[int, int]:
    """Make a change, and kill it at one of so many of its writes. Returns how many these were, and all writes."""
    work = partial(change, before, after) if manner == "running" else partial(restore, after)
    one_node.restore(before)
    writes = one_node.run(work)
    one_node.shows(after)
    chosen = drawn(range(len(writes)), one_of=one_of, by=by)
    for number in chosen:
        one_node.restore(before)
        one_node.run(work, number)
        one_node.shows(before, after)
        one_node.restore(after)
        one_node.shows(after)
    return len(chosen), len(writes)


# ---- random edits ------------------------------------------------------------------------------------------------

Trouble = Callable[[Stage, random.Random], AbstractAsyncContextManager[None]]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Agents that have their objects from an API server on the wire."""
    with staged(tmp_path_factory.mktemp("edits"), lambda lab, _: ApiFeed(control_plane(lab))) as made:
        yield made


@asynccontextmanager
async def killed(stage: Stage, dice: random.Random) -> AsyncIterator[None]:
    """Some agents are killed at random moments, while they start, too, and are started again."""
    deployment = stage.deployment

    async def kill_and_start(node: str) -> None:
        for _ in range(dice.randint(1, 2)):
            await asyncio.sleep(dice.uniform(0, LONGEST_LIFE))
            await deployment.agents[node].kill()
            await deployment.start(*SETTINGS, nodes=(node,), wait=False)

    async with asyncio.TaskGroup() as group:
        for node in dice.sample(list(deployment.agents), dice.randint(1, len(deployment.agents))):
            group.create_task(kill_and_start(node))
        yield


@asynccontextmanager
async def without_api_server(stage: Stage, dice: random.Random) -> AsyncIterator[None]:
    """No packet reaches the API server, which takes edits all the same; some agents start in that time."""
    wire = stage.deployment.cluster.wire
    wire.ip("link set control-plane down\n")
    try:
        async with killed(stage, dice):
            yield
        await asyncio.sleep(dice.uniform(0, LONGEST_ABSENCE))
    finally:
        wire.ip("link set control-plane up\n")


TROUBLES: tuple[Trouble, ...] = (lambda *_: nullcontext(), killed, without_api_server)


@pytest.mark.parametrize("part", range(1, PARTS + 1))
async def test_random_edits_let_no_packet_through_that_old_and_new_policies_refuse(
    stage: Stage, part: int, record_property: Callable[[str, object], None]
) -> None:
    """Some edits at a time are of one kind, in whose order an agent sees them: its watches of kinds are not in order.

    Datagrams are sent on all ways, from before the first of these edits until every agent has written the last one.
    """
    by, edits = seed(), 0
    print(f"seed {by}")
    dice, random_policies = random.Random(f"{by} {part}"), RandomPolicies(f"{by} {part}")
    await stage.shows(random_policies.objects.values())
    while edits < EDITS:
        kind = dice.choices(KINDS, WEIGHTS)[0]
        worlds = [stage.world()]
        with stage.matrix.spraying() as arrived:
            async with dice.choice(TROUBLES)(stage, dice):
                for _ in range(dice.randint(1, 4)):
                    await asyncio.sleep(dice.uniform(0, 0.3))
                    worlds.append(stage.edit(*random_policies.edit(kind)))
            for agent in stage.deployment.agents.values():
                await agent.ready()
            await stage.policies.settled()
        leaked = {way for way in arrived if refused_throughout(worlds, way)}
        assert not leaked, f"{described(leaked, ())}{stage.written()}"
        await stage.look()
        edits += len(worlds) - 1
    record_property("measured", f"{edits} random edits of policies let nothing through, seed {by}")
