"""A running agent says what it serves, what is wrong, and what to do about it."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from kroute.base.histogram import Histogram
from kroute.checks.running_proxies import Sign
from kroute.firewall.nftables.policy_tables import PolicyTables
from kroute.inspect import shared_state
from kroute.inspect.policies import Enforced
from kroute.inspect.shared_state import SharedState
from kroute.inspect.status import MOST_PROBLEMS, PolicyCounts, Severity, State, Status, StatusProblem, with_problems
from kroute.kernel.ipvs.objects import RealServerState, VirtualServerOptions, VirtualServerState
from kroute.model.objects import Applied
from kroute.model.plan import NodePlan, Problem
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.watchers.kubernetes.requests import WatchStatistics
from tests.builders import LISTED, endpoint, endpoint_slice, node, service
from tests.unit.observed import Observed
from tests.unit.planning.policies.cluster import Cluster, pod, policy
from tests.virtual_time import virtual


async def status(agent: Observed, about: str = "") -> Status:
    return msgspec.json.decode(await agent.observation.answers["status"](about), type=Status)


@pytest.fixture
def agent() -> Observed:
    """An agent with one Service, which the kernel has."""
    agent = Observed()
    agent.catalog.take([Applied(node()), Applied(service()), Applied(endpoint_slice("web", endpoint())), *LISTED])
    plans = agent.catalog.plan_marked()
    agent.broadcaster.publish(plans)
    for queue in agent.broadcaster._subscriptions:
        queue.take()
    [server] = [it for plan in plans if not isinstance(plan, NodePlan) for it in plan.virtual_servers]
    reals = {(it.address, it.port): RealServerState(1, active=4, inactive=1) for it in server.real_servers}
    agent.kernel.table = {server.key: VirtualServerState(VirtualServerOptions(server.scheduler), reals)}
    return agent


async def test_an_agent_whose_kernel_has_everything_has_no_problem(agent: Observed) -> None:
    found = await status(agent)
    assert (found.state, found.pending, found.problems, found.is_settled) == (State.READY, 0, [], True)
    assert (found.served.services, found.served.virtual_servers, found.served.real_servers) == (1, 1, 1)
    assert (found.served.missing, found.served.connections, found.served.inactive) == (0, 4, 1)
    assert found.source is not None
    assert (found.source.connected, found.source.objects["Service"]) == (True, 12)
    assert found.source.server == "https://192.0.2.1:6443", "without the password"
    assert found.shared == ""
    assert len((await status(agent, "shared")).shared) == 16


async def test_what_the_kernel_lacks_is_a_problem_once_nothing_is_on_its_way(agent: Observed) -> None:
    agent.kernel.table = {}
    [problem] = (await status(agent)).problems
    assert (problem.severity, problem.reason) == ("FAIL", "NotInKernel")
    agent.catalog.take([Applied(service("other", "10.96.0.11"))])
    found = await status(agent)
    assert (found.pending, found.problems) == (1, [])


async def test_each_thing_that_hinders_the_agent_has_a_next_step(agent: Observed) -> None:
    agent.workers.is_live = False
    agent.workers.faults = ["masquerade has failed for 75 s: the lock is held"]
    agent.workers.counters["route_fix"] = ControllerStatistics(waiting=3)
    agent.workers.counters["masquerade"] = ControllerStatistics(failing_for=75, last_error="the lock is held")
    agent.watches["Node"] = WatchStatistics(1, 2, 0, 9, 0, 0, "", denied=9, denied_with=403, is_away=True)
    agent.kernel.refuses = True
    fills = agent.workers.fills[0]
    fills.entries = fills.limit
    found = await status(agent)
    assert found.state is State.STARTING
    assert [it.reason for it in found.problems] == [
        *("Denied", "ApiUnreachable", "Unhealthy", "WriteRefused", "ControllerFailing", "KernelUnreadable"),
        "SetNearlyFull",
    ]
    assert found.served.missing is None
    assert all(it.next_step for it in found.problems)


async def test_a_token_that_the_api_server_refuses_is_one_problem_and_is_to_be_renewed(agent: Observed) -> None:
    for watch in agent.watches.values():
        watch.denied_with = 401
    [problem] = (await status(agent)).problems
    assert (problem.reason, problem.message) == ("Denied", "the API server refuses kroute's token (401 Unauthorized)")
    assert problem.next_step.startswith("renew the token")


@pytest.mark.parametrize(("waits", "state"), [(True, State.WAITING), (False, State.READY)])
async def test_another_proxy_is_a_failure_with_its_sign_and_a_next_step(
    agent: Observed, waits: bool, state: State
) -> None:
    """While kroute waits for it, what is not in the kernel and who has not run yet are no problems of their own."""
    sign = Sign("kube-proxy", "it has written rules or sets")
    reason, said = "RivalServiceProxy", f"{sign}, beside kroute"
    if waits:
        reason, said = "WaitingForServiceProxy", f"waiting: {sign}"
        agent.ownership.waits_for, agent.workers.faults, agent.kernel.table = sign, ["nothing has run yet"], {}
        agent.ownership.is_ours.clear()
    else:
        agent.ownership.rival = sign
    found = await status(agent)
    assert found.state is state
    assert [(it.severity, it.reason, it.message) for it in found.problems] == [(Severity.FAIL, reason, said)]
    assert "docs/one-proxy.md" in found.problems[0].next_step


async def test_another_enforcer_of_policies_is_a_failure(agent: Observed) -> None:
    agent.ownership.rival = Sign("Calico", "chain cali-FORWARD", has_policies=True)
    [problem] = (await status(agent)).problems
    assert (problem.severity, problem.reason) == (Severity.FAIL, "RivalPolicyEnforcer")
    assert "docs/network-policies.md" in problem.next_step


async def test_problems_of_services_come_last_and_are_warnings(agent: Observed) -> None:
    bad = msgspec.structs.replace(
        agent.broadcaster.services[service().key], problems=(Problem("InvalidAnnotation", "x", "x is wrong."),) * 150
    )
    agent.broadcaster.publish([bad])
    agent.workers.faults = ["route_fix has been at one pass for 90 s"]
    found = await status(agent)
    assert (found.problems[0].reason, found.problems[0].service) == ("Unhealthy", "")
    assert {(it.severity, it.service) for it in found.problems[1:]} == {("WARNING", "default/web")}
    assert "kubectl describe service -n default web" in found.problems[1].next_step
    assert (len(found.problems), found.problems_total) == (100, 151)


async def test_a_manifest_that_cannot_be_read_is_a_problem(agent: Observed) -> None:
    agent.faults.append("/manifests/a.yaml: an object without a kind")
    [problem] = (await status(agent)).problems
    assert (problem.severity, problem.reason) == ("WARNING", "ManifestFaulty")
    assert problem.message == "/manifests/a.yaml: an object without a kind"


async def test_problems_of_network_policies_are_warnings_and_isolated_pods_are_counted(agent: Observed) -> None:
    assert (await status(agent)).policies is None
    made = Cluster(pod("web", "10.0.0.1", "fd00::1"), policy("odd", policyTypes=["Sideways"]))
    found = await status(Observed(Enforced(made.catalog, PolicyTables(None), Histogram((1.0,)))))
    assert found.policies == PolicyCounts(isolated_pods=1, with_problems=1)
    [problem] = [problem for problem in found.problems if problem.reason == "InvalidNetworkPolicy"]
    assert (problem.severity, problem.message[:24]) == ("WARNING", "NetworkPolicy shop/odd: ")


@virtual()
async def test_what_nodes_share_is_found_out_once_however_many_ask(
    agent: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    whole = shared_state.shared_state

    async def counted(*arguments: Any) -> SharedState:
        await asyncio.sleep(2.0)
        found.append(await whole(*arguments))
        return found[-1]

    monkeypatch.setattr(shared_state, "shared_state", counted)
    await asyncio.gather(*(agent.observation.answers["shared"]("") for _ in range(5)))
    assert len(found) == 1
    await asyncio.sleep(2.1)
    await status(agent, "shared")
    assert len(found) == 2


def test_a_frequent_reason_hides_no_other() -> None:
    def problem(number: int, reason: str, severity: Severity = Severity.WARNING) -> StatusProblem:
        return StatusProblem(severity, f"default/s{number}", reason, "message", "step")

    many = [problem(number, "Frequent") for number in range(300)]
    rare = [problem(number, "Rare") for number in range(300, 303)]
    found = with_problems(Status(node="n", state=State.READY), [*many, *rare, problem(1, "Bad", Severity.FAIL)])
    assert found.reasons == {"Bad": 1, "Frequent": 300, "Rare": 3}
    assert (len(found.problems), found.problems_total) == (MOST_PROBLEMS, 304)
    assert Counter(it.reason for it in found.problems) == {"Bad": 1, "Frequent": 96, "Rare": 3}
    assert [it.reason for it in found.problems[:2]] == ["Bad", "Frequent"]
