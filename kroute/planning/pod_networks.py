"""The pods' networks of all Nodes, looked up by address, and the addresses from outside, looked up by network.

A cluster has thousands of Nodes and thousands of such addresses, so neither look-up walks through all.
"""

from bisect import bisect_left, bisect_right, insort
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network

_SHORTEST = {4: 16, 6: 48}
"""Prefix lengths. A network that is larger is no Node's pod network: kube-controller-manager gives out smaller ones."""


class PodNetworks:
    """Which Node has which networks (`spec.podCIDRs`). A kubelet may write them while they are empty, so it may lie."""

    def __init__(self) -> None:
        self._networks: dict[str, tuple[Network, ...]] = {}
        self._owners: dict[tuple[int, int], dict[int, tuple[str, ...]]] = {}
        """By IP version and prefix length, then by the network's number."""

    def put(self, node: str, written: tuple[str, ...]) -> set[Network]:
        """Replace a Node's networks; returns those that it did not have before, or has no longer."""
        before = self._networks.pop(node, ())
        after = tuple(dict.fromkeys(network for network in map(_parsed, written) if network is not None))
        if after:
            self._networks[node] = after
        changed = set(before) ^ set(after)
        for network in changed:
            same_length = self._owners.setdefault((network.version, network.prefixlen), {})
            number = int(network.network_address)
            owners = same_length.pop(number, ())
            left = tuple(it for it in owners if it != node) if node in owners else (*owners, node)
            if left:
                same_length[number] = left
            elif not same_length:
                del self._owners[network.version, network.prefixlen]
        return changed

    def owner(self, address: str) -> str | None:
        """The Node in whose pod network a (canonical) address is."""
        if not self._owners:
            return None
        parsed = ip_address(address)
        number, bits = int(parsed), parsed.max_prefixlen
        for (version, length), networks in self._owners.items():
            owners = networks.get(number >> (bits - length) << (bits - length)) if version == parsed.version else None
            if owners:
                return owners[0]
        return None


class SortedAddresses:
    """Addresses in their order, so that those in a network are found by bisection."""

    def __init__(self) -> None:
        self._numbers: dict[int, list[tuple[int, str]]] = {4: [], 6: []}

    def toggle(self, address: str) -> None:
        """Add a (canonical) address, or take it out if it is there."""
        parsed = ip_address(address)
        numbers, entry = self._numbers[parsed.version], (int(parsed), address)
        at = bisect_left(numbers, entry)
        if at < len(numbers) and numbers[at] == entry:
            del numbers[at]
        else:
            insort(numbers, entry)

    def within(self, network: Network) -> list[str]:
        """The addresses in this network."""
        numbers = self._numbers[network.version]
        first, last = int(network.network_address), int(network.broadcast_address)
        return [it for _, it in numbers[bisect_left(numbers, (first, "")) : bisect_right(numbers, (last, "~"))]]


def _parsed(text: str) -> Network | None:
    """A network, None if it is none or larger than those of a Node can be."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    return network if network.prefixlen >= _SHORTEST[network.version] else None
