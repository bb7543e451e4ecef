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
    PrivilegeWatch(agent.statistics, problems.append, 30.0, lambda: may_change_network).look()
    return problems


async def test_nothing_is_said_while_nothing_is_denied(agent: Observed) -> None:
    agent.workers.counters["masquerade"].failures = 3
    agent.watches["Service"].failures = 3
    assert told(agent) == []


async def test_a_lost_capability(agent: Observed) -> None:
    [problem] = told(agent, may_change_network=False)
    assert (problem.reason, problem.subject) == (REASON, "capability NET_ADMIN")
    assert "give the container the capability NET_ADMIN" in problem.message


async def test_a_controller_that_the_kernel_denies_what_it_needs(agent: Observed) -> None:
    agent.workers.counters["masquerade"].denied = 1
    [problem] = told(agent)
    assert problem.subject == "controller masquerade"


async def test_a_verb_that_the_api_server_denies(agent: Observed) -> None:
    agent.watches["EndpointSlice"].denied = 2
    [problem] = told(agent)
    assert problem.subject == "API EndpointSlice"
    assert "ClusterRole" in problem.message
