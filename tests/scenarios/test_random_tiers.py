"""Random policies of the cluster among those of namespaces: what the kernel makes of them is what the oracle says.

KROUTE_LAB_SEED chooses them.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.lab.firewall import NFTABLES, backend
from tests.lab.reachability import Way
from tests.lab.thoroughness import drawn, is_thorough, seed
from tests.scenarios.one_node import OneNode, one_staged
from tests.scenarios.random_tiers import RandomTiers
from tests.scenarios.test_policy_kills import change

pytestmark = [
    pytest.mark.each_firewall,
    # The thread of the lab's traffic does nothing while a child is forked.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

EXAMPLES, CALLS = (100, 100) if is_thorough() else (20, 100)
EDITS, SHARE = (8, 1) if is_thorough() else (2, 4)
"""At one of so many of their writes kroute is killed. An edit may take some forty, of seconds each."""


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNode]:
    with one_staged(tmp_path_factory.mktemp("writes")) as made:
        yield made


def ways_of(one_node: OneNode) -> list[Way]:
    """Without those of pods to themselves: no node sees these packets."""
    return [way for way in one_node.ways if way.source != way.target]


def test_the_kernels_verdict_on_random_tiers_is_the_oracles(
    one_node: OneNode, record_property: Callable[[str, object], None]
) -> None:
    by = seed()
    print(f"seed {by}")
    tiers, dice = RandomTiers(f"{by} {backend()}"), random.Random(by)
    for _ in range(EXAMPLES):
        objects = list(tiers.objects.values())
        one_node.restore(objects)
        one_node.shows(objects, ways=dice.sample(ways_of(one_node), CALLS))
        tiers.draw()
    record_property("measured", f"the kernel and the oracle agree on {EXAMPLES} random sets of tiers, seed {by}")


@pytest.mark.parametrize("edit", range(1, EDITS + 1))
def test_a_kill_at_any_write_of_tiers_leaves_no_packet_through_that_old_and_new_policies_refuse(
    one_node: OneNode, edit: int, record_property: Callable[[str, object], None]
) -> None:
    """With iptables, what both accept may wait for the next start."""
    print(f"seed {(by := seed())}")
    tiers, ways = RandomTiers(f"{by} kills {edit} {backend()}"), ways_of(one_node)
    before = list(tiers.objects.values())
    tiers.edit_cluster(random.Random(f"{by} {edit}").choice("abcd"))
    after = list(tiers.objects.values())
    one_node.restore(before)
    writes = one_node.run(partial(change, before, after))
    one_node.shows(after, ways=ways)
    kills = drawn(range(len(writes)), one_of=SHARE, by=f"{by} {edit}")
    for last in kills:
        one_node.restore(before)
        one_node.run(partial(change, before, after), last)
        one_node.shows(before, after, ways=ways, are_served=backend() == NFTABLES)
    record_property("measured", f"an edit of tiers is killed at {len(kills)} of {len(writes)} writes, seed {by}")
