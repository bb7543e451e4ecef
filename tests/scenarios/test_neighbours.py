"""Network policies of others hold for what IPVS forwards: Calico's Felix, and kube-router's firewall.

Each Service here has one endpoint, a pod on this node, whose policy lets only a friend in. Felix sees IPVS's packets
only where the dummy interface has the name that it looks for.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lab.answers import ask_json
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.deployment import Deployment, eventually
from tests.lab.feed import feed_for
from tests.lab.hosts import Host
from tests.lab.neighbours import Workload, run_felix, run_kube_router_firewall, wire_as_calico_does
from tests.lab.objects import endpoint_slices, service
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.scenarios.conftest import FAMILIES, Family

pytestmark = pytest.mark.legacy

PORT, NODE_PORT = 8080, 31080
PATIENCE = 3.0
CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
FLAGS = ("--cluster-cidr", f"{POD_RANGE},{POD_RANGE6}")


class Neighbourhood(NamedTuple):
    """A node with a Service whose only endpoint is `server`, two more pods, and a client outside."""

    node: Node
    client: Host
    server: Pod
    friend: Pod
    stranger: Pod
    deployment: Deployment

    @property
    def friends(self) -> tuple[str, ...]:
        """The friend's addresses."""
        return self.friend.ip, self.friend.ip6


@asynccontextmanager
async def neighbourhood(scratch: Path, *, is_calico: bool) -> AsyncIterator[Neighbourhood]:
    cluster = Cluster(("node1",))
    try:
        node = cluster.node("node1")
        server = await node.pod("server", http=PORT)
        friend, stranger = await node.pod("friend"), await node.pod("stranger")
        for number, pod in enumerate((server, friend, stranger) if is_calico else (), 1):
            wire_as_calico_does(pod, number)
        deployment = Deployment(cluster, feed_for(cluster, scratch))
        web = service("web", *CLUSTER_IPS, ports={"TCP": PORT}, node_ports={"TCP": NODE_PORT})
        deployment.apply(web, *endpoint_slices("web", [server]))
        yield Neighbourhood(node, cluster.client, server, friend, stranger, deployment)
    finally:
        cluster.close()


async def reaches(caller: Host, address: str, port: int) -> bool:
    """Whether the server answers; a refusal and silence are both what a policy may do."""
    try:
        return (await caller.http(address, port, timeout=PATIENCE)).host == "server"
    except (ConnectionError, TimeoutError):
        return False


async def assert_policy_holds(here: Neighbourhood, family: Family) -> None:
    """Assert that the friend and the node reach the server, and that the stranger and the client do not."""
    vip, own = family.service_ip, family.of(here.node)
    assert await reaches(here.friend, vip, PORT)
    assert await reaches(here.node, vip, PORT)
    assert not await reaches(here.stranger, vip, PORT)
    assert not await reaches(here.stranger, own, NODE_PORT)
    assert not await reaches(here.client, own, NODE_PORT)


def felix_workloads(here: Neighbourhood, *allowed: str) -> list[Workload]:
    return [Workload(here.server, allowed), Workload(here.friend), Workload(here.stranger)]


async def test_felixs_policy_holds_for_a_local_pod_behind_a_service(tmp_path: Path) -> None:
    async with neighbourhood(tmp_path, is_calico=True) as here:
        await here.deployment.start(*FLAGS)
        assert run_felix(here.node, felix_workloads(here, *here.friends)), "Felix did not take it for a node with IPVS"
        for family in FAMILIES:
            assert await reaches(here.friend, family.of(here.server), PORT)
            assert not await reaches(here.stranger, family.of(here.server), PORT)
            await assert_policy_holds(here, family)
        client = (here.client.ip, here.client.ip6)
        for family, address in zip(FAMILIES, client, strict=True):
            name = f"cali{60 if ':' in address else 40}s:{here.server.interface[-4:]}"
            here.node.run("ipset", "add", name, address)
            assert await reaches(here.client, family.of(here.node), NODE_PORT)


async def test_under_another_name_felix_lets_everybody_in_and_check_says_so(tmp_path: Path) -> None:
    """Why the dummy interface has this name: without it a policy does not hold for calls through a Service."""
    async with neighbourhood(tmp_path, is_calico=True) as here:
        await here.deployment.start(*FLAGS, "--dummy-interface", "kube-dummy-if")
        assert not run_felix(here.node, felix_workloads(here, *here.friends))
        for family in FAMILIES:
            assert not await reaches(here.stranger, family.of(here.server), PORT)
            assert await reaches(here.stranger, family.service_ip, PORT)
        _, report = await ask_json(here.node, "check", *here.deployment.source)
        [finding] = [it for it in report["items"] if it["check"] == "calico"]
        assert finding["level"] == "FAIL"
        assert "Felix looks for kube-ipvs0, and the VIPs are on kube-dummy-if" in finding["message"]


async def test_check_says_that_the_name_is_right_beside_felix(tmp_path: Path) -> None:
    async with neighbourhood(tmp_path, is_calico=True) as here:
        await here.deployment.start(*FLAGS)
        run_felix(here.node, felix_workloads(here))
        _, report = await ask_json(here.node, "check", *here.deployment.source)
        assert [it["level"] for it in report["items"] if it["check"] == "calico"] == ["OK"]


def jumps(node: Node) -> list[str]:
    """Return the targets of the first rules of INPUT."""
    return [line.split()[-1] for line in node.run("iptables-legacy", "-S", "INPUT").splitlines()[1:3]]


async def test_felixs_jumps_stay_first_and_nothing_is_repaired(tmp_path: Path) -> None:
    """Felix puts its jumps first whenever they are not. If kroute did too, both would write the tables for ever."""
    async with neighbourhood(tmp_path, is_calico=True) as here:
        await here.deployment.start(*FLAGS)
        run_felix(here.node, felix_workloads(here))
        [agent] = here.deployment.agents.values()
        assert jumps(here.node) == ["cali-INPUT", "KROUTE-INPUT"]
        before = len(agent.log.read_text())
        here.node.run("iptables-legacy", "-D", "INPUT", "2")

        def is_repaired() -> None:
            assert jumps(here.node) == ["cali-INPUT", "KROUTE-INPUT"]
            assert "the jumps of INPUT are not first" in agent.log.read_text()[before:]

        await eventually(is_repaired)
        assert "the jumps of OUTPUT are not first" not in agent.log.read_text()[before:]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_kube_routers_firewall_holds_for_a_local_pod_behind_a_service(tmp_path: Path, family: Family) -> None:
    async with neighbourhood(tmp_path, is_calico=False) as here:
        await here.deployment.start(*FLAGS)
        run_kube_router_firewall(here.node, here.server, here.friends)
        await assert_policy_holds(here, family)
        address = family.of(here.client)
        here.node.run("ipset", "add", "inet6:KUBE-SRC-LAB" if ":" in address else "KUBE-SRC-LAB", address)
        assert await reaches(here.client, family.of(here.node), NODE_PORT)
