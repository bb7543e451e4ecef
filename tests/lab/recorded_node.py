"""The node on which the real proxies were recorded (tests/real_proxies), in the lab.

Its pods are in one namespace, which answers at every address of the pod networks. `leave` gives the node's kernel what
a proxy left there, with the usual tools.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kroute.model.objects import Applied, EndpointSlice
from tests import real_proxies
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.hosts import Host
from tests.lab.other_proxies import IPVS_SYSCTLS, KUBE_ROUTER_SYSCTLS
from tests.lab.topology import Place

POD_NETWORKS = ("10.100.0.0/14", "10.120.0.0/16", *(f"fd00:10:{number}::/48" for number in (100, 101, 102, 120)))
EXTERNAL_NETWORKS = ("198.51.100.0/24", "203.0.113.0/24", "2001:db8:5::/48", "2001:db8:6::/48")
SERVICE_NETWORKS = ("10.96.0.0/16", "fd00:10:96::/108")
TARGET_PORTS = (8080, 9090)

_LINKS = {
    real_proxies.KUBE_PROXY_IPVS: "link add kube-ipvs0 type dummy\n",
    real_proxies.KUBE_ROUTER: "link add kube-dummy-if type dummy\nlink set kube-dummy-if up\n",
    real_proxies.KUBE_PROXY_IPTABLES: "",
}
_SYSCTLS: dict[str, dict[str, int]] = {
    real_proxies.KUBE_PROXY_IPVS: IPVS_SYSCTLS,
    real_proxies.KUBE_ROUTER: KUBE_ROUTER_SYSCTLS,
    real_proxies.KUBE_PROXY_IPTABLES: {},
}


@dataclass(frozen=True)
class RecordedPlace(Place):
    """A place on the wire of the recordings."""

    @property
    def ip(self) -> str:
        """The IPv4 address on the wire."""
        return f"192.168.250.{self.last}"

    @property
    def ip6(self) -> str:
        """The IPv6 address on the wire."""
        return f"fd00:192:168:250::{self.last}"


@dataclass(frozen=True)
class RecordedWorld:
    """The node, its pods, and a client outside, which is also the API server of the Service `kubernetes`."""

    cluster: Cluster
    node: Node
    pods: Pod
    client: Host


@contextmanager
def recorded_cluster() -> Iterator[Cluster]:
    """A cluster of the recorded node alone."""
    cluster = Cluster((real_proxies.NODE,), places={real_proxies.NODE: RecordedPlace(2, 100)}, client=RecordedPlace(1))
    try:
        yield cluster
    finally:
        cluster.close()


async def populate(cluster: Cluster) -> RecordedWorld:
    """Add the pods, with servers of every protocol at both target ports, and the routes."""
    node, client = cluster.node(real_proxies.NODE), cluster.client
    pods = await node.pod("pods")
    pods.sysctl("net.ipv6.ip_nonlocal_bind", 1)  # datagrams are answered from an address that only a route makes local
    pods.namespace.ip("".join(f"route add local {network} dev lo\n" for network in POD_NETWORKS))
    for port in TARGET_PORTS:
        await pods.serve(http=port, udp=port)
    sctp = sorted(_sctp_endpoints())
    # SCTP tells its peer every address of an unbound listener, and takes packets to configured addresses only.
    addresses = sorted({address for address, _ in sctp})
    pods.namespace.ip("".join(f"address add {it} dev lo{' nodad' if ':' in it else ''}\n" for it in addresses))
    for address, port in sctp:
        await pods.serve(sctp=port, address=address)
    await client.serve(http=6443)
    node.namespace.ip("".join(f"route add {it} via {pods.ip6 if ':' in it else pods.ip}\n" for it in POD_NETWORKS))
    node.namespace.ip(f"route add default via {client.ip}\nroute add default via {client.ip6}\n")
    client.namespace.ip(
        "".join(
            f"route add {it} via {node.ip6 if ':' in it else node.ip}\n" for it in SERVICE_NETWORKS + EXTERNAL_NETWORKS
        )
    )
    return RecordedWorld(cluster, node, pods, client)


def leave(node: Node, proxy: str, variant: str = "legacy") -> None:
    """Load what the proxy left: sysctls, sets, virtual servers, rules, its link with addresses, and routes.

    `variant` is that of iptables, "legacy" or "nft".
    """
    for name, value in _SYSCTLS[proxy].items():
        node.sysctl(name, value)
    if sets := real_proxies.text(proxy, "ipset-save"):
        node.run("ipset", "restore", stdin=sets)
    if servers := real_proxies.text(proxy, "ipvsadm-S"):
        node.run("ipvsadm", "-R", stdin=servers)
    for tool in ("iptables", "ip6tables"):
        node.run(f"{tool}-{variant}-restore", "--noflush", stdin=loadable(real_proxies.text(proxy, f"{tool}-save")))
    node.namespace.ip(_LINKS[proxy] + "".join(_addresses(proxy)))
    node.namespace.ip("".join(_routes(proxy)))


def _sctp_endpoints() -> set[tuple[str, int]]:
    slices = [
        it.item for it in real_proxies.objects() if isinstance(it, Applied) and isinstance(it.item, EndpointSlice)
    ]
    return {
        (endpoint.addresses[0], port.port)
        for it in slices
        for endpoint in it.endpoints or ()
        for port in it.ports or ()
        if port.protocol == "SCTP" and port.port
    }


def loadable(rules: str) -> str:
    """Return the rules with equivalents of what the lab's kernel lacks.

    The match nfacct only counts. The ports of SCTP are matched by multiport.
    """
    return re.sub(r"-m sctp --dport (\d+)", r"-m multiport --dports \1", re.sub(r" -m nfacct \S+ +\S+", "", rules))


def _addresses(proxy: str) -> Iterator[str]:
    for line in real_proxies.text(proxy, "ip-addr").splitlines():
        _, link, _, address, *scope = line.split()
        yield f"address add {address} {' '.join(scope[:2])} dev {link}\n"


def _routes(proxy: str) -> Iterator[str]:
    """The routes that differ from those that the kernel adds with an address, in place of these."""
    for line in real_proxies.text(proxy, "ip-route").splitlines():
        written = line.removesuffix(" pref medium")
        kernels, _, source = written.partition(" src ")
        if ":" not in kernels:
            yield f"route replace {written}\n"
        elif source:
            yield f"route replace {written}\nroute del {kernels} metric 0\n"
