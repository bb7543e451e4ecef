"""The cases of tests/conformance/policy_cases.py: what the oracle and Kubernetes expect of them is the same."""

from collections import Counter

from tests.conformance.policy_cases import CYCLONUS, KUBERNETES, Case, cells
from tests.conformance.rows import ROWS
from tests.lab.reachability import FAMILIES, POD, ways
from tests.unit.each import assert_each
from tests.unit.planning.policies.cluster import Cluster
from tests.unit.planning.policies.oracle import World

TITLES = [row.title for row in ROWS if row.id.startswith("netpol ")]
CASES = {title: Case(title, steps) for title, steps in zip(TITLES, KUBERNETES, strict=True)}
ALL = CASES | {f"{group}: {case.name}": case for group, cases in CYCLONUS.items() for case in cases}


def test_the_oracle_expects_what_the_authors_of_kubernetes_tests_expect() -> None:
    """In both families. They leave out what a pod sends to itself."""

    def check(title: str) -> None:
        case = CASES[title]
        for step, objects in zip(case.steps, case.states(), strict=True):
            world = World(objects, None)
            assert step.refused
            for (protocol, port), text in step.refused.items():
                expected = {(source, target) for source, target in cells(text) if source != target}
                tried = [way for way in ways(by=[POD], protocols=[protocol]) if way.port == port]
                refused = Counter((way.source, way.target) for way in tried if not world.allows(*way.packet))
                assert refused == dict.fromkeys(expected, len(FAMILIES)), text

    assert_each(CASES, check)


def test_the_calls_that_a_text_names_are_found() -> None:
    assert cells("x/a>y/b") == {("x/a", "y/b")}
    assert len(cells("*>x")) == 27
    assert len(cells("*>x/a, x>* but x/b>x/a, x>z")) == 9 + 24 - 1 - 9
    assert cells("") == set()


def test_planning_understands_every_policy() -> None:
    def check(name: str) -> None:
        for objects in ALL[name].states():
            assert Cluster(*objects).messages() == []

    assert_each(ALL, check)


def test_every_group_of_cyclonus_is_a_row_with_all_of_its_cases() -> None:
    """Of 230 cases nine are the same as Kubernetes' own."""
    assert {f"cyclonus {group}" for group in CYCLONUS} == {row.id for row in ROWS if row.id.startswith("cyclonus ")}
    counts = "targets 6, rules 4, peers 112, ports 70, examples 1, actions 6, conflicts 16, namespaces 2, e2e 4"
    assert ", ".join(f"{group} {len(cases)}" for group, cases in CYCLONUS.items()) == counts
    assert len(ALL) == len(CASES) + 221, "two cases have one name"
