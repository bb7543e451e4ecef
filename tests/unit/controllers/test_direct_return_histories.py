"""Whatever happens to Services with direct return, and in whatever order controllers see it, the end is the same."""

import errno
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kroute.base.forwarding import TUNNEL
from kroute.model.plan import AddressSet, ServicePlan, SetEntry, TunnelEnd
from tests.examples import examples
from tests.unit.fake_node import FakeNode, plan, server

VIPS = {"web": "198.51.100.7", "api": "2001:db8::7"}
PODS = {"web": ("10.1.0.1", "10.1.0.2"), "api": ("fd01::1", "fd01::2")}
REMOTE = {"web": "10.9.0.1", "api": "fd09::1"}

Wish: TypeAlias = tuple[str, str, tuple[bool, ...], bool]
"""A Service, how it is served, which of its pods serve (the last is on another node), and whether it is restricted."""
WISHES = st.tuples(
    st.sampled_from(["web", "api"]),
    st.sampled_from(["deleted", "in the cluster", "translated", "direct", "direct"]),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.booleans(),
)
STEPS = st.lists(st.integers(0, 3), max_size=5)
"""Which controllers make a pass, in turn."""
HISTORIES = st.lists(st.tuples(WISHES, STEPS, st.sampled_from(["", "", "", "refused", "later"])), max_size=8)


def wanted(wish: Wish, generation: int) -> ServicePlan:
    name, how, which, is_restricted = wish
    if how == "deleted":
        return plan(name, generation)
    if how == "in the cluster":
        return plan(name, generation, server("10.96.0.1" if name == "web" else "fd96::1", 80, PODS[name][0]))
    vip = VIPS[name]
    pods = [it for it, serves in zip((*PODS[name], REMOTE[name]), which, strict=True) if serves]
    made = plan(name, generation, server(vip, 80, *pods))
    if is_restricted:
        restricted = SetEntry(AddressSet.RESTRICTED, (vip, 6, 80))
        made = msgspec.structs.replace(made, set_entries=(*made.set_entries, restricted))
    if how == "translated":
        return made
    return msgspec.structs.replace(
        made,
        virtual_servers=(msgspec.structs.replace(made.virtual_servers[0], method=TUNNEL),),
        vips=(),
        direct_vips=(vip,),
        tunnel_ends=tuple(TunnelEnd(it, vip) for it in pods if it in PODS[name]),
    )


def new_node(directory: Path) -> FakeNode:
    node = FakeNode(directory, direct_return=True)
    for pod in (*PODS["web"], *PODS["api"]):
        node.clients.tunnels.add_pod(pod)
    return node


def restarted(node: FakeNode) -> FakeNode:
    again, before = node.restarted(direct_return=True), node.clients.tunnels
    tunnels = again.clients.tunnels
    tunnels.pods, tunnels.mark, tunnels.addresses = before.pods, before.mark, before.addresses
    return again


def served(node: FakeNode) -> tuple[set[str], dict[tuple[int, str, int], set[object]], set[str]]:
    """The VIPs that are delivered, the real servers with weight, and the VIPs that are bound."""
    servers = {
        key: {(real, it.weight, it.method) for real, it in state.real_servers.items() if it.weight}
        for key, state in node.kernel.virtual_servers.items()
    }
    bound = {it for it in VIPS.values() if node.kernel.has_address(it)}
    return node.clients.tunnels.addresses, dict(servers), bound


async def live(node: FakeNode, wishes: Sequence[tuple[Wish, list[int], str]]) -> dict[str, Wish]:
    """Let all this happen; returns what is wanted at the end."""
    newest, generations = {}, count(1)
    await node.start()
    for wish, steps, event in wishes:
        newest[wish[0]] = wish
        node.broadcaster.publish([wanted(wish, next(generations))])
        if event == "refused":
            node.kernel.refuse(lambda _: True, errno.EAGAIN)
        for index in steps:
            await node.pump()
            await node.controllers[index].step()
        node.kernel.accept_all()
        if event == "later":
            node.clock.now += 3
    await node.settle()
    for _ in range(4):
        await node.resync()
    return newest


@examples(30)
@given(HISTORIES, st.permutations(range(4)))
async def test_any_history_ends_as_a_new_node_does_and_a_restart_changes_nothing(
    wishes: Sequence[tuple[Wish, list[int], str]], order: list[int]
) -> None:
    with TemporaryDirectory() as old, TemporaryDirectory() as new:
        node = new_node(Path(old))
        newest = [wanted(it, 1) for it in (await live(node, wishes)).values()]
        other = await new_node(Path(new)).start(*newest)
        assert served(node) == served(other)
        again = await restarted(node).start(*newest, order=order)
        assert again.kernel.writes == []
