"""NetworkPolicies: the cases of `policy_cases.py`, with calls among all pods after each of their steps.

Each of Kubernetes' cases is a test, and each group of those of cyclonus; their names are the titles of their rows.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from tests.conformance.policy_cases import CYCLONUS, KUBERNETES, Case, Step
from tests.conformance.rows import ROWS
from tests.conformance.table import row
from tests.scenarios.policy_stage import Stage, staged

T = TypeVar("T", bound=Callable[..., Awaitable[None]])

pytestmark = [pytest.mark.each_firewall, pytest.mark.feed_in_turn(1)]

SHARE_OF_KUBERNETES, SHARE_OF_CYCLONUS = 4, 16
"""A run that is not thorough has one of so many cases."""
_TITLES = {one.id: one.title for one in ROWS}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The pods, which reach each other, and agents on all nodes. A case removes what the one before has left."""
    with staged(tmp_path_factory.mktemp("netpol")) as made:
        yield made


async def play(stage: Stage, case: Case) -> None:
    """Make the changes of a case one after the other, and compare all calls after each."""
    if case.protocols and case.protocols.isdisjoint(stage.matrix.protocols):
        pytest.skip(f"this kernel has no {', '.join(case.protocols)}")
    for objects in case.states():
        await stage.shows(objects)


def shows(id_: str) -> Callable[[T], T]:
    """Make a function the test of a row."""

    def name(test: T) -> T:
        words = "".join(letter if letter.isalnum() else " " for letter in f"{id_} {_TITLES[id_]}".lower()).split()
        globals()[f"test_{'_'.join(words)}"] = row(id_)(test)
        return test

    return name


def _one_of_kubernetes(number: int, steps: list[Step]) -> None:
    case = Case(_TITLES[f"netpol {number}"], steps)

    @shows(f"netpol {number}")
    @pytest.mark.drawn(SHARE_OF_KUBERNETES, "netpol")
    async def _(stage: Stage) -> None:
        await play(stage, case)


def _group_of_cyclonus(group: str, cases: list[Case]) -> None:
    @shows(f"cyclonus {group}")
    @pytest.mark.drawn(SHARE_OF_CYCLONUS)
    @pytest.mark.parametrize("case", cases, ids=lambda case: case.name)
    async def _(stage: Stage, case: Case) -> None:
        await play(stage, case)


for _number, _steps in enumerate(KUBERNETES, 1):
    _one_of_kubernetes(_number, _steps)
for _group, _cases in CYCLONUS.items():
    _group_of_cyclonus(_group, _cases)
