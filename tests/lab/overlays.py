"""Overlay networks: the packets of pods on different nodes go through tunnels between the nodes.

The routes of the pods' networks are laid as network plugins lay them. Each tunnel device has an address of the node's
pod network, which the kernel takes for what it masquerades into the tunnel.
"""

import base64
import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pyroute2 import WireGuard

from tests.lab.allocation import Addresses
from tests.lab.cluster import Cluster, Node
from tests.lab.topology import NODES

_WIREGUARD_PORT = 51820
_MAC = "02:00:00:00:{:02x}:{:02x}"


class Overlay(NamedTuple):
    """A kind of overlay: the MTU that it leaves to pods, and how its tunnels are built.

    `checks_sources`: whether a node takes from a tunnel only what has a source of the node at the other end.

    `build` makes a node's tunnels to the other nodes, and yields, for each, a device and the routes of that node's pod
    networks. All nodes have their devices before the rest of any runs.
    """

    name: str
    mtu: int
    build: Callable[[Node, list[Node]], Iterator[None]]
    checks_sources: bool = False

    def lay(self, cluster: Cluster) -> None:
        """Replace the routes between the nodes' pods, and give pods and bridges the MTU."""
        nodes = list(cluster.nodes.values())
        building = [self.build(node, [other for other in nodes if other is not node]) for node in nodes]
        for step in building:
            next(step)
        for step in building:
            next(step, None)
        for node in nodes:
            node.namespace.ip(f"link set cbr0 mtu {self.mtu}\n")
            for pod in node.pods:
                node.namespace.ip(f"link set {pod.interface} mtu {self.mtu}\n")
                pod.namespace.ip(f"link set eth0 mtu {self.mtu}\n")


def address_of(node: Node) -> Addresses:
    """The addresses of a node's tunnel devices."""
    place = NODES[node.name]
    return Addresses(place.pod_ip(254), place.pod_ip6(254))


def carried(node: Node) -> int:
    """How many bytes the node has sent into its tunnels."""
    counts = [line.split() for line in node.namespace.read("/proc/net/dev").splitlines()[2:]]
    return sum(int(fields[9]) for fields in counts if fields[0].startswith("tun"))


def _vxlan(node: Node, others: list[Node]) -> Iterator[None]:
    """As flannel: a device for each family, with static neighbours and forwarding entries."""
    own = NODES[node.name]
    for number, (local, address) in enumerate(zip((node.ip, node.ip6), address_of(node), strict=True)):
        node.namespace.ip(
            f"link add tun{number} address {_MAC.format(number, own.pods)} type vxlan id 1 dev eth0"
            f" dstport {8472 + number} local {local} nolearning\n"
            f"link set tun{number} mtu 1430 up\naddress add {address} dev tun{number}\n"
        )
    yield
    for other in others:
        place = NODES[other.name]
        for number, (remote, via) in enumerate(zip((other.ip, other.ip6), address_of(other), strict=True)):
            device, mac = f"tun{number}", _MAC.format(number, place.pods)
            node.run("bridge", "fdb", "append", mac, "dev", device, "dst", remote)
            node.namespace.ip(
                f"neigh replace {via} lladdr {mac} dev {device} nud permanent\n"
                f"route replace {place.pod_networks[number]} via {via} dev {device} onlink\n"
            )


def _ipip(node: Node, others: list[Node]) -> Iterator[None]:
    """A device for each family and other node."""
    for other in others:
        for number, (kind, address) in enumerate(
            zip(("ipip", "ip6tnl mode ip6ip6 encaplimit none"), address_of(node), strict=True)
        ):
            local, remote = ((node.ip, other.ip), (node.ip6, other.ip6))[number]
            device = f"tun{number}{other.name}"
            node.namespace.ip(
                f"link add {device} type {kind} local {local} remote {remote}\n"
                f"link set {device} mtu 1452 up\naddress add {address} dev {device}\n"
                f"route replace {NODES[other.name].pod_networks[number]} dev {device}\n"
            )
    yield


def _wireguard(node: Node, others: list[Node]) -> Iterator[None]:
    """One device. A peer may send from its pods' addresses, and from its own, as with Calico."""
    yield from _wireguard_allowing(node, others, nodes_too=True)


def _wireguard_for_pods_only(node: Node, others: list[Node]) -> Iterator[None]:
    """As flannel: a peer may send from the addresses of its pod network only."""
    yield from _wireguard_allowing(node, others, nodes_too=False)


def _wireguard_allowing(node: Node, others: list[Node], *, nodes_too: bool) -> Iterator[None]:
    private = _KEYS.setdefault(node.name, base64.b64encode(secrets.token_bytes(32)).decode())
    node.namespace.ip(
        "link add tun0 type wireguard\n"
        + "".join(f"address add {address} dev tun0\n" for address in address_of(node))
        + "link set tun0 mtu 1420 up\n"
    )
    with node.namespace.inside(), WireGuard() as wireguard:
        wireguard.set("tun0", private_key=private, listen_port=_WIREGUARD_PORT)
        public = wireguard.info("tun0")[0].get("WGDEVICE_A_PUBLIC_KEY")
    _PUBLIC[node.name] = public.decode() if isinstance(public, bytes) else public
    yield
    for other in others:
        place = NODES[other.name]
        allowed = [*place.pod_networks, *((f"{other.ip}/32", f"{other.ip6}/128") if nodes_too else ())]
        with node.namespace.inside(), WireGuard() as wireguard:
            wireguard.set(
                "tun0",
                peer={
                    "public_key": _PUBLIC[other.name],
                    "endpoint_addr": other.ip,
                    "endpoint_port": _WIREGUARD_PORT,
                    "allowed_ips": allowed,
                },
            )
        node.namespace.ip("".join(f"route replace {network} dev tun0\n" for network in place.pod_networks))


_KEYS: dict[str, str] = {}
_PUBLIC: dict[str, str] = {}

VXLAN = Overlay("vxlan", 1430, _vxlan)
IPIP = Overlay("ipip", 1452, _ipip)
WIREGUARD = Overlay("wireguard", 1420, _wireguard, checks_sources=True)
WIREGUARD_FOR_PODS_ONLY = Overlay("wireguard for pods only", 1420, _wireguard_for_pods_only, checks_sources=True)
