"""The pods' network goes from kube-router's router, the real one, to kroute, and pods reach each other throughout."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.lab import kubernetes
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.deployment import eventually, goes_on
from tests.lab.feed import ApiFeed, control_plane
from tests.lab.kube_router import KubeRouter
from tests.lab.load import Load, Way, constant_load
from tests.lab.pod_network import CNI_CONFIGURATION, FAR, GATEWAYS, Runtime, routes_of
from tests.lab.policy_state import saved
from tests.scenarios.conftest import FAMILIES
from tests.scenarios.test_migrate import migrate
from tests.scenarios.test_pod_network import PORT, Network, all_reach_each_other, network

pytestmark = [pytest.mark.nftables, pytest.mark.legacy]  # kube-router needs ip_set and iptables
THEIRS = "kube-router", "tun-", "proto 17", "lookup 77", "allow inbound", "allow outbound", "10-kuberouter"
"""What only kube-router's router leaves. The bridge stays, since pods are on it."""


@asynccontextmanager
async def routed_by_kube_router(here: Network, how: str, *more: str) -> AsyncIterator[dict[str, KubeRouter]]:
    """Run kube-router on each node, as what connects pods."""
    program = kubernetes.program("kube-router")
    if program is None:
        pytest.skip(str(kubernetes.missing("kube-router")))
    server = control_plane(here.cluster)
    server.node.namespace.ip(f"route add default via {GATEWAYS[0]}\n")  # to the node in the other subnet
    feed = ApiFeed(server)
    for item in here.deployment.node_objects:
        spec = item["spec"]
        feed.put({**item, "spec": {**spec, "podCIDR": spec["podCIDRs"][0]}})  # an API server has both
    routers = {}
    try:
        for name, runtime in here.runtimes.items():
            runtime.directory.mkdir(parents=True, exist_ok=True)
            cni = runtime.directory / "10-kuberouter.conflist"
            cni.write_text(json.dumps(CNI_CONFIGURATION))
            routers[name] = KubeRouter(here.cluster.node(name), feed, program, how, cni=cni, more=more)
            routers[name].launch()
        for runtime in here.runtimes.values():
            await eventually(partial(has_networks, runtime, routers), within=10)
        yield routers
    finally:
        for router in routers.values():
            router.close()


def has_networks(runtime: Runtime, routers: dict[str, KubeRouter]) -> None:
    """Once kube-router has entered the networks of the node's pods in its file."""
    said = "".join(router.log.read_text()[-3000:] for router in routers.values())
    assert '"ranges"' in (runtime.directory / "10-kuberouter.conflist").read_text(), said


def between(pods: list[Pod]) -> Iterator[Way]:
    """The ways between pods of different nodes."""
    for caller in pods:
        for called in pods:
            if caller.node is not called.node:
                yield from (Way(caller, family.of(called), PORT) for family in FAMILIES)


def left(node: Node, runtime: Runtime) -> list[str]:
    """What kube-router's router has left."""
    commands = "ip rule", "ip -6 rule", "ip -br link", "ipset list -n", "iptables-legacy-save", "ip6tables-legacy-save"
    lines = [line for it in (*commands, "nft list ruleset") for line in saved(node, *it.split()).splitlines()]
    lines += [*routes_of(node), *map(str, runtime.directory.iterdir())]
    return [line for line in lines if any(word in line for word in THEIRS)]


async def pods_answer(pods: list[Pod], routers: dict[str, KubeRouter]) -> None:
    """Once every pod has answered every other one."""
    await asyncio.sleep(0.5)  # what looks all the time leaves it no time
    for way in between(pods):
        said = "".join(router.log.read_text()[-3000:] for router in routers.values())
        try:
            await way.client.http(way.address, way.port, timeout=5)
        except OSError as error:
            raise AssertionError(f"{way} {error!r}" + "\n".join(routes_of(way.client.node)) + said) from None


@pytest.mark.drawn(2)
@pytest.mark.parametrize("how", ["legacy", "nft-variant"])
@pytest.mark.parametrize("overlay", ["subnet", "full"])
async def test_pods_go_from_kube_routers_network_to_kroutes_without_an_interruption(
    tmp_path: Path, overlay: str, how: str
) -> None:
    async with (
        network(tmp_path, "--overlay", overlay, prepare=as_with_its_service_proxy) as here,
        routed_by_kube_router(here, how, f"--overlay-type={overlay}", "--bgp-graceful-restart=true") as routers,
    ):
        old = [await runtime.pod(f"old-{name}", http=PORT) for name, runtime in here.runtimes.items()]
        await eventually(partial(pods_answer, old, routers), within=10)
        streams = [await way.client.open_stream(way.address, way.port) for way in between(old)]
        async with constant_load(between(old)) as load:
            await here.start()
            new = await here.pods()
            for pod in new:
                assert f"{pod.interface}@" in pod.node.run("ip", "-br", "link", "show", "master", "kube-bridge")
            await all_reach_each_other([*old, *new])
            await load.goes_on(1)
            async with constant_load(between(new)) as load_of_new:
                for router in routers.values():
                    router.end()
                    await ended(load, load_of_new)
                for name, runtime in here.runtimes.items():
                    node = here.cluster.node(name)
                    assert left(node, runtime)
                    said = await migrate(node, "--from", "kube-router", "--take-over")
                    assert "nothing of kube-router's is left" in said
                    assert left(node, runtime) == [], said
                    await ended(load, load_of_new)
            assert not load_of_new.failures
        assert not load.failures
        for stream in streams:
            await goes_on(stream)
            await stream.close()
        await all_reach_each_other([*old, *new])
        await here.deployment.agents[FAR].terminate()
        await here.start(nodes=[FAR])
        await all_reach_each_other([*old, *new, await here.runtimes[FAR].pod("later", http=PORT)])


def as_with_its_service_proxy(cluster: Cluster) -> None:
    """Have the reverse path filters that kube-router sets when it serves Services."""
    for node in cluster.nodes.values():
        for of in "all", "default", "eth0":
            node.sysctl(f"net.ipv4.conf.{of}.rp_filter", 2)


async def ended(*loads: Load) -> None:
    for load in loads:
        await load.goes_on(2)
        assert not load.failures
