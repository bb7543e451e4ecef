"""The behaviour of direct return's tunnels that kroute relies on. The real class and the fake pass the same tests.

A subclass provides the fixture `node`: tests/kernel/test_tunnels.py the real one, and
tests/unit/kernel/test_fake_tunnels.py the fake one.
"""

import errno
from socket import AF_INET, AF_INET6
from typing import Protocol

import pytest

from kroute.kernel.clients import TunnelClient
from kroute.kernel.errors import KernelError
from kroute.kernel.net.steering import Steer
from kroute.kernel.pods.client import LINKS
from kroute.kernel.pods.namespaces import PodNamespace
from kroute.kernel.pods.pod_network import PodTunnel

POD, POD6, OTHER = "10.244.1.5", "fd00:10:244:1::5", "10.244.1.6"
VIP, VIP6, OTHER_VIP = "198.51.100.7", "2001:db8::7", "198.51.100.8"
MARK = 0x2000
FAMILIES = {POD: (AF_INET, VIP), POD6: (AF_INET6, VIP6)}
"""The family of each of the pod's addresses, and a VIP of it."""


class TunnelNode(Protocol):
    """A node whose pods are network namespaces with a process each."""

    tunnels: TunnelClient

    def add_pod(self, *addresses: str, depth: int = 0) -> int:
        """Make a pod with these addresses in so many user namespaces; returns its process."""

    def end_pod(self, pid: int) -> None: ...

    def add_link_like_ours(self, pid: int, name: str) -> None:
        """Have somebody else make a link of this name in the pod."""

    def be_strict(self, pid: int) -> None:
        """Let the node drop packets of the pod whose source is not the pod's."""


async def found(node: TunnelNode, *addresses: str) -> PodNamespace:
    [namespace] = await node.tunnels.find(addresses)
    return namespace


class TunnelsContract:
    async def test_addresses_are_delivered_until_they_are_not(self, node: TunnelNode) -> None:
        for _ in range(2):  # one that is there already is no failure
            assert await node.tunnels.steer([Steer(VIP), Steer(VIP6)]) == []
            assert await node.tunnels.steered() == {VIP, VIP6}
        for _ in range(2):
            assert await node.tunnels.steer([Steer(VIP, is_wanted=False)]) == []
            assert await node.tunnels.steered() == {VIP6}

    async def test_the_rules_are_made_once_and_follow_the_mark(self, node: TunnelNode) -> None:
        assert not await node.tunnels.has_rules(MARK)
        assert await node.tunnels.ensure_rules(MARK)
        assert await node.tunnels.has_rules(MARK)
        assert not await node.tunnels.has_rules(MARK * 2)
        assert await node.tunnels.ensure_rules(MARK) == []
        assert await node.tunnels.ensure_rules(MARK * 2)
        assert await node.tunnels.ensure_rules(MARK * 2) == []

    async def test_removing_takes_rules_and_addresses_and_says_whether_there_were_any(self, node: TunnelNode) -> None:
        await node.tunnels.ensure_rules(MARK)
        await node.tunnels.steer([Steer(VIP)])
        assert await node.tunnels.remove()
        assert not await node.tunnels.remove()
        assert await node.tunnels.steered() == set()
        assert await node.tunnels.ensure_rules(MARK)

    async def test_a_pod_is_found_by_an_address_of_either_family(self, node: TunnelNode) -> None:
        pid = node.add_pod(POD, POD6)
        node.add_pod(OTHER)
        for asked in ([POD], [POD6], [POD, POD6, VIP]):
            namespace = await found(node, *asked)
            assert (namespace.pid, namespace.addresses) == (pid, frozenset(asked) - {VIP})
            assert (namespace.links, namespace.depth) == (frozenset(), 0)
        assert await node.tunnels.find([VIP]) == []

    async def test_the_nearest_namespaces_are_found_first_and_those_below_a_pods_never(self, node: TunnelNode) -> None:
        pids = [node.add_pod(POD, depth=depth) for depth in (2, 1, 0)]
        nearest = [(namespace.pid, namespace.depth) for namespace in await node.tunnels.find([POD])]
        assert nearest == [(pids[2], 0), (pids[1], 1)]

    async def test_a_namespace_is_asked_which_addresses_it_has(self, node: TunnelNode) -> None:
        pid = node.add_pod(POD, POD6)
        namespace = await found(node, POD)
        for address, has in {POD: True, POD6: True, OTHER: False}.items():
            assert await node.tunnels.has_address(namespace, address) is has
        with pytest.raises(KernelError, match="cannot enter the network namespace"):
            await node.tunnels.has_address(namespace._replace(inode=1), POD)  # its number is another process's now
        node.end_pod(pid)
        with pytest.raises(KernelError, match="cannot enter the network namespace"):
            await node.tunnels.has_address(namespace, POD)

    @pytest.mark.parametrize("address", FAMILIES, ids=["IPv4", "IPv6"])
    async def test_a_pod_is_prepared_once_and_undone_once(self, node: TunnelNode, address: str) -> None:
        node.add_pod(POD, POD6)
        family, vip = FAMILIES[address]
        namespace = await found(node, address)
        tunnel = PodTunnel(address, frozenset({vip}))
        assert await node.tunnels.prepare(namespace, tunnel)
        assert await node.tunnels.prepare(namespace, tunnel) == []
        assert (await found(node)).links == {LINKS[family]}  # also if nobody asks for its address
        assert await node.tunnels.undo(namespace, family)
        assert not await node.tunnels.undo(namespace, family)
        assert await node.tunnels.find(()) == []

    async def test_the_vips_of_a_pod_are_changed_in_place(self, node: TunnelNode) -> None:
        node.add_pod(POD)
        namespace = await found(node, POD)
        for vips in ({VIP}, {VIP, OTHER_VIP}, {OTHER_VIP}):
            assert await node.tunnels.prepare(namespace, PodTunnel(POD, frozenset(vips)))
            assert await node.tunnels.prepare(namespace, PodTunnel(POD, frozenset(vips))) == []

    async def test_an_address_that_the_pod_does_not_have_is_refused(self, node: TunnelNode) -> None:
        node.add_pod(POD)
        namespace = await found(node, POD)
        with pytest.raises(KernelError) as refused:
            await node.tunnels.prepare(namespace, PodTunnel(OTHER, frozenset({VIP})))
        assert refused.value.errno == errno.EADDRNOTAVAIL
        assert await node.tunnels.find(()) == []

    async def test_a_link_of_our_name_that_is_not_ours_stays(self, node: TunnelNode) -> None:
        node.add_link_like_ours(node.add_pod(POD), LINKS[AF_INET])
        namespace = await found(node, POD)
        assert namespace.links == {LINKS[AF_INET]}
        with pytest.raises(KernelError, match="not kroute's") as refused:
            await node.tunnels.prepare(namespace, PodTunnel(POD, frozenset({VIP})))
        assert refused.value.errno == errno.EEXIST
        assert not await node.tunnels.undo(namespace, AF_INET)
        assert (await found(node, POD)).links == {LINKS[AF_INET]}

    async def test_a_pod_that_has_ended_is_refused_and_found_no_more(self, node: TunnelNode) -> None:
        pid = node.add_pod(POD)
        namespace = await found(node, POD)
        node.end_pod(pid)
        with pytest.raises(KernelError, match="cannot enter the network namespace") as refused:
            await node.tunnels.prepare(namespace, PodTunnel(POD, frozenset({VIP})))
        assert refused.value.errno == errno.ENOENT
        assert await node.tunnels.find([POD]) == []

    async def test_a_pod_whose_answers_the_node_would_drop_is_known(self, node: TunnelNode) -> None:
        pid = node.add_pod(POD, POD6)
        assert await node.tunnels.strict_interface(POD) is None
        node.be_strict(pid)
        assert await node.tunnels.strict_interface(POD)
        assert await node.tunnels.strict_interface(POD6) is None  # IPv6 has no such check
