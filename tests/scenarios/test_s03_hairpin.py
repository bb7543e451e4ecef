"""S3: a pod that calls its own Service may be sent to itself, and is answered.

Without masquerading the packet would come back with the pod's own address as its source. The pod would answer itself
directly, outside the connection that it opened. Node ports and external addresses with policy Cluster work without
hairpin, because outside traffic is masqueraded anyway. So hairpin matters for ClusterIPs and for policy Local.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.lab.allocation import Addresses
from tests.lab.deployment import Deployment, eventually
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.world import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
OTHER_CLUSTER_IPS = tuple(family.other_service_ip for family in FAMILIES)
EXTERNAL = Addresses("203.0.113.10", "2001:db8::10")
PORTS = {"TCP": 8080, "UDP": 5353}
NODE_PORTS = {"TCP": 30080, "UDP": 30053}
HANGS_FOR = 1.0
"""Seconds without an answer after which a call is taken to hang; an answer comes within milliseconds."""

Place = tuple[str, int, int]
"""An address of a Service, with its TCP and UDP port."""


def web(policy: str = "Cluster", **annotations: str) -> Object:
    return service(
        "web",
        *CLUSTER_IPS,
        ports=PORTS,
        node_ports=NODE_PORTS,
        externalIPs=list(EXTERNAL),
        externalTrafficPolicy=policy,
        annotations={f"kroute.io/{name}": value for name, value in annotations.items()},
    )


def places(world: World, family: Family) -> list[Place]:
    """Return the Service's ClusterIP, node port and external IP, as callers on node1 use them."""
    node1 = family.of(world.cluster.node("node1"))
    return [(family.service_ip, 8080, 5353), (node1, 30080, 30053), (family.of(EXTERNAL), 8080, 5353)]


async def reaches_itself(pod: Host, family: Family, place: Place) -> None:
    address, tcp, udp = place
    for answer in (await pod.http(address, tcp), await pod.udp(address, udp)):
        assert answer.host == pod.name
        assert answer.peer != family.of(pod), "the packet has kept its source, and yet was answered"


async def hangs(pod: Host, place: Place) -> None:
    address, tcp, udp = place
    calls = (pod.http(address, tcp, timeout=HANGS_FOR), pod.udp(address, udp, timeout=HANGS_FOR))
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, TimeoutError) for end in ends), f"{address} answered: {ends}"


@pytest.fixture
async def neighbour(world: World) -> AsyncIterator[Host]:
    """Another pod of node1 that serves the same ports. The kernel recognises a hairpin by pod, not by Service."""
    yield await world.visitor.serve(http=8080, udp=5353)
    await world.visitor.stop_serving()


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
async def test_s3_a_pod_reaches_itself_by_every_address_of_its_service(
    policy: str, world: World, deployment: Deployment
) -> None:
    """Without the set HAIRPIN the ClusterIP hangs, and so do the other two with policy Local."""
    deployment.apply(web(policy), *endpoint_slices("web", world.web[:1], PORTS))
    await deployment.start(nodes=("node1",))
    for family in FAMILIES:
        for place in places(world, family):
            await reaches_itself(world.web[0], family, place)


async def test_s3_with_hairpin_off_it_hangs_but_for_services_that_have_it_on(
    world: World, neighbour: Host, deployment: Deployment
) -> None:
    """If the flag were ignored, the first call would be answered; if the annotation were, the second would hang."""
    deployment.apply(
        web("Local"), service("other", *OTHER_CLUSTER_IPS, ports=PORTS, annotations={"service.hairpin": "on"}),
        *endpoint_slices("web", world.web[:1], PORTS), *endpoint_slices("other", [neighbour], PORTS),
    )  # fmt: skip
    await deployment.start("--hairpin=off", nodes=("node1",))
    await asyncio.gather(*(hangs(world.web[0], place) for family in FAMILIES for place in places(world, family)))
    for family in FAMILIES:
        await reaches_itself(neighbour, family, (family.other_service_ip, 8080, 5353))


async def test_s3_the_annotation_turns_one_service_off_and_on_while_another_goes_on(
    world: World, neighbour: Host, deployment: Deployment
) -> None:
    """If the annotation were read only when the Service is created, nothing would change."""
    pod = world.web[0]
    deployment.apply(
        web(), service("other", *OTHER_CLUSTER_IPS, ports=PORTS),
        *endpoint_slices("web", [pod], PORTS), *endpoint_slices("other", [neighbour], PORTS),
    )  # fmt: skip
    await deployment.start(nodes=("node1",))

    async def all_hang() -> None:
        await asyncio.gather(*(hangs(pod, (vip, 8080, 5353)) for vip in CLUSTER_IPS))

    async def all_reach_themselves() -> None:
        for family in FAMILIES:
            await reaches_itself(pod, family, (family.service_ip, 8080, 5353))

    await all_reach_themselves()
    for _ in range(2):
        deployment.apply(web(hairpin="off"))
        await eventually(all_hang)
        for family in FAMILIES:
            await reaches_itself(neighbour, family, (family.other_service_ip, 8080, 5353))
        deployment.apply(web())
        await eventually(all_reach_themselves)


async def test_s3_others_still_reach_the_pod_without_being_masqueraded(world: World, deployment: Deployment) -> None:
    """A hairpin rule that matched the destination alone would show the pod this node's address."""
    deployment.apply(web(), *endpoint_slices("web", world.web[:1], PORTS))
    await deployment.start(nodes=("node1",))
    for family in FAMILIES:
        assert (await world.visitor.http(family.service_ip, 8080)).peer == family.of(world.visitor)
