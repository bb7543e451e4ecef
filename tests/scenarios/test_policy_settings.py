"""What network policies do beside letting in and shutting out, if that is asked for, with packets."""

import asyncio
import re
import socket
from contextlib import ExitStack, closing, suppress
from functools import partial

import pytest

from tests.lab import policy_state
from tests.lab.cluster import Node, Pod
from tests.lab.deployment import Deployment, eventually, goes_on
from tests.lab.hosts import OpenStream
from tests.lab.objects import Object
from tests.lab.world import FAMILIES, World
from tests.scenarios.test_network_policies import (
    HANGS_FOR,
    HOST_PORT,
    Policies,
    at,
    described,
    hangs,
    policies,
    reaches,
    served,
)
from tests.unit.planning.policies.cluster import egress, ingress, pods_with, policy

__all__ = ["policies"]
pytestmark = pytest.mark.each_firewall

CUTS = ("--policy-cuts-connections",)
OF_WEB: Object = {"selector": {"matchLabels": {"app": "web-1"}}}
PUSHING_PORT = 7100


async def test_an_unknown_pod_is_closed_until_it_is_known(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    """The bridge of the pods has an address of the node's pod networks, too."""
    web, other, _ = world.web
    node1, node2 = world.cluster.node("node1"), world.cluster.node("node2")
    near, far = served(deployment, 20, web), served(deployment, 21, other)
    await node1.serve(http=HOST_PORT)
    unknown = described(web)
    deployment.delete(unknown)
    await policies.start("node1", more=("--policy-default-deny",))
    for family in FAMILIES:
        calls = [hangs(client, family.of(web)) for client in (world.visitor, other, node2)]
        calls += [hangs(web, family.of(one)) for one in (world.visitor, other)]
        calls += [hangs(web, family.of(node1), HOST_PORT), hangs(web, at(far, family))]
        await asyncio.gather(*calls, hangs(world.visitor, at(near, family)))
        await reaches(node1, family.of(web))
        await reaches(node1, at(near, family))
        await reaches(world.visitor, family.of(other))
        await reaches(world.visitor, at(far, family))
        await reaches(world.visitor, family.of(node1), HOST_PORT)
    await policies.apply(unknown)
    for family in FAMILIES:
        await reaches(world.visitor, family.of(web))
        await reaches(web, at(far, family))
        await reaches(web, family.of(node1), HOST_PORT)
    await node1.stop_serving()


async def test_a_connection_that_is_not_allowed_any_more_is_cut_if_asked_and_others_go_on(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    """Neither end may begin it again: the visitor may not come in, and the pod may not send to the visitor."""
    web, other, _ = world.web
    addresses = served(deployment, 20, web)
    await policies.start(more=CUTS)
    places = [place for family in FAMILIES for place in (family.of(web), at(addresses, family))]
    refused = [await world.visitor.open_stream(place, 8080, patience=HANGS_FOR) for place in places]
    allowed = [await client.open_stream(place, 8080) for client in (other, web.node) for place in places]
    peer = pods_with(app="web-2")
    await policies.apply(ingress(peer, name="in", **OF_WEB), egress(peer, name="out", **OF_WEB))
    for stream in refused:
        await eventually(partial(is_cut, stream))
    for stream in allowed:
        await goes_on(stream)
        await stream.close()


def is_cut(stream: OpenStream) -> None:
    assert stream.failure is not None


async def test_a_server_that_goes_on_sending_does_not_bring_a_cut_connection_back(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    """The server's pod may begin connections to the client, and conntrack takes its packets for such."""
    web, node1 = world.web[0], world.cluster.node("node1")
    addresses = served(deployment, 20, web, ports={"TCP": PUSHING_PORT})
    await policies.start("node1", more=CUTS)
    places = [place for family in FAMILIES for place in (family.of(web), at(addresses, family))]
    with ExitStack() as stack:
        ends = [await connected(stack, world.visitor, web, place) for place in places]
        for client, server in ends:
            server.send(b"before")
            await eventually(partial(client.recv, 100))
        await policies.apply(policy("in", policyTypes=["Ingress"], **OF_WEB))
        for place in places:
            await eventually(partial(drops_answers_of, node1, place))
        await policies.settled()  # so the pass that has cut is over
        for _, server in ends:
            server.send(b"behind")
        received = await asyncio.gather(*(receives(client) for client, _ in ends))
        assert not any(received)


async def connected(stack: ExitStack, client: Pod, server: Pod, place: str) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection to this address, of the server or of a Service."""
    family = socket.AF_INET6 if ":" in place else socket.AF_INET
    listener = stack.enter_context(closing(server.namespace.socket(family, socket.SOCK_STREAM)))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((server.ip6 if ":" in place else server.ip, PUSHING_PORT))
    listener.listen()
    caller = stack.enter_context(closing(client.namespace.socket(family, socket.SOCK_STREAM)))
    with suppress(BlockingIOError):
        caller.connect((place, PUSHING_PORT))
    answering, _ = await eventually(listener.accept)
    listener.close()
    answering.setblocking(False)
    return caller, stack.enter_context(closing(answering))


def drops_answers_of(node: Node, place: str) -> None:
    """Wait for the element of nf_tables or ipset."""
    assert re.search(rf"\b{re.escape(place)}(?: \. tcp \. |,tcp:){PUSHING_PORT}\b", policy_state.written(node))


async def receives(client: socket.socket) -> bytes:
    """What arrives, or nothing."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HANGS_FOR):
            return await asyncio.get_running_loop().sock_recv(client, 100)
    return b""
