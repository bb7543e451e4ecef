"""Random policies, pods and calls: what the kernel makes of each is what the oracle says.

KROUTE_LAB_SEED chooses them.
"""

import random
from collections.abc import Callable, Iterator

import pytest

from tests.lab.firewall import backend
from tests.lab.thoroughness import is_thorough, seed
from tests.scenarios.one_node import OneNode, one_staged
from tests.scenarios.policy_stage import Stage, staged
from tests.scenarios.random_policies import RandomPolicies

pytestmark = [pytest.mark.each_firewall, pytest.mark.feed_in_turn(0)]

ON_ONE_NODE = 50
"""Examples of a part, in every run; five parts with two firewalls are 500."""
CALLS = 100
"""In each of them."""
PARTS, EXAMPLES = (5, 50) if is_thorough() else (1, 3)
"""Those with agents on all nodes. A test's end is awaited for a quarter of an hour, so there are several parts."""


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNode]:
    with one_staged(tmp_path_factory.mktemp("writes")) as made:
        yield made


@pytest.mark.parametrize("part", range(1, 6))
def test_the_kernels_verdict_is_the_oracles_on_one_node(
    one_node: OneNode, part: int, record_property: Callable[[str, object], None]
) -> None:
    """Each example begins with the tables of the one before it."""
    by = seed()
    print(f"seed {by}")
    random_policies, dice = RandomPolicies(f"{by} {part} {backend()}"), random.Random(f"{by} {part}")
    for _ in range(ON_ONE_NODE):
        objects = list(random_policies.objects.values())
        one_node.restore(objects)
        one_node.shows(objects, ways=dice.sample(one_node.ways, CALLS))
        random_policies.draw()
    record_property("measured", f"the kernel and the oracle agree on {ON_ONE_NODE} random policies, seed {by}")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("random")) as made:
        yield made


@pytest.mark.parametrize("part", range(1, PARTS + 1))
async def test_the_kernels_verdict_is_the_oracles_for_every_call_among_nine_pods(
    stage: Stage, part: int, record_property: Callable[[str, object], None]
) -> None:
    by = seed()
    print(f"seed {by}")
    random_policies = RandomPolicies(f"{by} {part}")
    for _ in range(EXAMPLES):
        await stage.shows(random_policies.objects.values())
        random_policies.draw()
    record_property("measured", f"all calls are the oracle's with {EXAMPLES} random sets of policies, seed {by}")
