"""A lost privilege is reported once, with what to do."""

import pytest

from kroute.model.plan import Problem
from kroute.telemetry.privileges import REASON, PrivilegeWatch
from tests.unit.observed import Observed


@pytest.fixture
async def agent() -> Observed:
    return Observed()


def told(agent: Observed, *, may_change_network: bool = True) -> list[Problem]:
    problems: list[Problem] = []
    PrivilegeWatch(agent.statistics, problems.append, problems.append, 30.0, lambda: may_change_network).look()
    return problems


def deny(agent: Observed) -> None:
    counters = agent.workers.counters["masquerade"]
    counters.denied, counters.last_error = 1, "iptables: Permission denied"


async def test_nothing_is_said_while_nothing_is_denied(agent: Observed) -> None:
    agent.workers.counters["masquerade"].failures = 3
    agent.watches["Service"].failures = 3
    agent.watches["Service"].denied = 3
    assert told(agent) == []


async def test_a_lost_capability(agent: Observed) -> None:
    [problem] = told(agent, may_change_network=False)
    assert (problem.reason, problem.subject) == (REASON, "capability NET_ADMIN")
    assert "give the container the capability NET_ADMIN" in problem.message


async def test_a_controller_that_the_kernel_denies_what_it_needs(agent: Observed) -> None:
    deny(agent)
    [problem] = told(agent)
    assert problem.subject == "controller masquerade"


async def test_a_verb_that_the_api_server_denies(agent: Observed) -> None:
    agent.watches["EndpointSlice"].denied_with = 403
    [problem] = told(agent)
    assert problem.subject == "API EndpointSlice"
    assert "ClusterRole" in problem.message


async def test_a_token_that_the_api_server_refuses_is_one_loss_and_is_to_be_renewed(agent: Observed) -> None:
    for watch in agent.watches.values():
        watch.denied_with = 401
    assert len(agent.watches) > 1
    [problem] = told(agent)
    assert problem.subject == "API token"
    assert "401 Unauthorized" in problem.message
    assert "renew the token" in problem.message
    assert "ClusterRole" not in problem.message


async def test_what_is_allowed_again_is_taken_back_once(agent: Observed) -> None:
    said: list[Problem] = []
    taken_back: list[Problem] = []
    watch = PrivilegeWatch(agent.statistics, said.append, taken_back.append, 30.0, lambda: True)
    agent.watches["Node"].denied_with = 403
    deny(agent)
    watch.look()
    assert taken_back == []
    agent.watches["Node"].denied_with = 0
    agent.workers.counters["masquerade"].last_error = ""
    watch.look()
    watch.look()
    assert sorted(problem.subject for problem in taken_back) == ["API Node", "controller masquerade"]
    assert len(said) == 2
