"""Nodes are compared by what must be the same, and marked with what they have differently."""

import msgspec

from kroute.cli.fleet.agents import FleetNode
from kroute.cli.fleet.survey import differences, lasting, server_differences, to_compare, usual
from kroute.inspect.shared_state import SharedServer, SharedState
from kroute.inspect.status import Served, Severity, State, Status, StatusProblem, with_problems

SERVER = SharedServer("default/web", "TCP", "10.96.0.10", 80, "rr 0x0 None", ("10.244.1.5:80=1", "10.244.2.5:80=1"))


def answer(node: str, *reasons: str, **changes: object) -> FleetNode:
    """A node's answer, with these problems of one Service."""
    usual_one = Status(node=node, state=State.READY, version="1.0.0", firewall="nftables", shared="a")
    problems = [StatusProblem(Severity.WARNING, "default/web", reason, f"{reason} on {node}", "") for reason in reasons]
    status = with_problems(msgspec.structs.replace(usual_one, **changes), problems)
    return FleetNode(node, f"kroute-{node}", "", status, "", [])


def test_equal_nodes_and_a_single_one_do_not_differ() -> None:
    assert differences([answer("a"), answer("b"), FleetNode("c", "kroute-c", "", None, "gone", [])]) == {}
    assert differences([answer("a", version="2")]) == {}
    assert to_compare([answer("a"), answer("b")]) == (None, [])


def test_a_node_of_another_version_or_backend_is_marked_with_both() -> None:
    found = differences([answer("a"), answer("b"), answer("c", version="0.9.0", firewall="iptables")])
    assert found == {"c": ["version 0.9.0, others have 1.0.0", "firewall iptables, others have nftables"]}


def test_without_a_majority_every_node_is_marked_with_its_own() -> None:
    assert differences([answer("a"), answer("b", version="2.0.0")]) == {"a": ["version 1.0.0"], "b": ["version 2.0.0"]}
    assert usual([]) is None


def test_a_problem_of_a_service_that_few_nodes_have_marks_them() -> None:
    nodes = [answer("a", "Same", "Other"), answer("b", "Same"), answer("c", "Same")]
    assert differences(nodes) == {"a": ["problem Other of default/web, which most others do not have"]}


def test_the_nodes_that_plan_something_else_than_most_are_looked_at() -> None:
    assert to_compare([answer("a", shared="x"), answer("b"), answer("c")]) == ("b", ["a"])
    more = Served(services=7)
    assert to_compare([answer("a", shared="x"), answer("b", served=more)]) == ("b", ["a"])


def test_each_difference_of_a_virtual_server_is_a_sentence() -> None:
    other = SharedServer("default/web", "TCP", "10.96.0.11", 80, "rr 0x0 None", None)
    here = msgspec.structs.replace(SERVER, options="lc 0x0 None", real_servers=("10.244.1.5:80=1", "10.244.9.9:80=1"))
    assert server_differences(SharedState([here]), SharedState([SERVER, other])) == [
        "TCP 10.96.0.10:80 (default/web) has in addition the real servers 10.244.9.9:80=1",
        "TCP 10.96.0.10:80 (default/web) has the options lc 0x0 None, elsewhere rr 0x0 None",
        "TCP 10.96.0.10:80 (default/web) lacks the real servers 10.244.2.5:80=1",
        "lacks the virtual server TCP 10.96.0.11:80 (default/web)",
    ]
    local = msgspec.structs.replace(SERVER, real_servers=None)
    assert server_differences(SharedState([local]), SharedState([SERVER])) == []


def test_only_what_two_looks_have_in_common_counts() -> None:
    first = {"a": ["one", "two"], "b": ["three"]}
    assert lasting(first, {"a": ["two", "four"], "b": []}) == {"a": ["two"]}
    assert lasting({"a": [str(n) for n in range(9)]}, {"a": [str(n) for n in range(9)]})["a"][-1] == "and 4 more"
