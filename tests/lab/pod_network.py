"""Nodes in two subnets, without any network of pods, and pods that a container runtime has given theirs by CNI.

The plugins are the real ones (Debian's containernetworking-plugins), called as a runtime calls them (the CNI
specification, 0.4.0): one after the other, with the result of the one before.
"""

import json
from pathlib import Path
from typing import Any

from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.hosts import Host
from tests.lab.namespaces import Namespace
from tests.lab.topology import CLIENT, NODES, Place

PLUGINS = Path("/usr/lib/cni")
FAR = "node3"
"""The node in a subnet of its own."""
CNI_CONFIGURATION = {
    "cniVersion": "0.3.0",
    "name": "mynet",
    "plugins": [
        {
            "name": "kubernetes",
            "type": "bridge",
            "bridge": "kube-bridge",
            "isDefaultGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local"},
        }
    ],
}
"""That of kube-router's own manifests."""
GATEWAYS = "192.168.123.1", "192.168.124.1", "fd00:192:168:123::1", "fd00:192:168:124::1"


class FarPlace(Place):
    """A place behind the router."""

    @property
    def ip(self) -> str:
        return super().ip.replace("192.168.123.", "192.168.124.")

    @property
    def ip6(self) -> str:
        return super().ip6.replace(":123::", ":124::")


REVERSE_PATH = {"node1": 1, "node2": 2, FAR: 1}
"""`rp_filter` of each node, for all interfaces: strict, loose, strict. Filters that are off let more through."""

PLACES = {**NODES, FAR: FarPlace(NODES[FAR].last, NODES[FAR].pods)}


def in_two_subnets() -> Cluster:
    """A cluster whose client is the router between two subnets on one wire. It knows no networks of pods."""
    made = Cluster(places=PLACES, connected=False)
    router = made.client
    router.namespace.ip("".join(f"address add {it}/{64 if ':' in it else 24} dev eth0\n" for it in GATEWAYS))
    for name in ("net.ipv4.conf.all.send_redirects", "net.ipv4.conf.eth0.send_redirects"):
        router.sysctl(name, 0)
    for name in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
        router.sysctl(name, 1)
    for name, node in made.nodes.items():
        for of in "all", "default", "eth0":
            node.sysctl(f"net.ipv4.conf.{of}.rp_filter", REVERSE_PATH[name])
        near, far, near6, far6 = GATEWAYS
        gateway, gateway6 = (far, far6) if name == FAR else (near, near6)
        node.namespace.ip(f"route add default via {gateway}\nroute add default via {gateway6}\n")
    return made


class Runtime:
    """A container runtime's part of a node: it gives pods their network by the first configuration in a directory."""

    def __init__(self, cluster: Cluster, node: Node, directory: Path) -> None:
        self._cluster = cluster
        self._node = node
        self.directory = directory / "net.d"
        self._leases = directory / "leases"

    def configuration(self) -> dict[str, Any]:
        """What a runtime reads. Raises OSError as long as there is none."""
        first = min(self.directory.glob("*.conf*"), default=None)
        if first is None:
            raise FileNotFoundError(self.directory)
        found: dict[str, Any] = json.loads(first.read_text())
        return found

    async def pod(self, name: str, *, http: int) -> Pod:
        """A pod with a server at this port."""
        namespace = self._cluster.namespace(name)
        namespace.ip("link set lo up\n")
        result = self._added(namespace, self.configuration())
        of_version = {it["version"]: it["address"].partition("/")[0] for it in result["ips"]}
        [interface] = [it["name"] for it in result["interfaces"] if it["name"].startswith("veth")]
        pod = Pod(name, self._node, interface, namespace, of_version.get("4", ""), of_version.get("6", ""))
        self._node.pods.append(pod)
        await pod.serve(http=http)
        return pod

    def _added(self, namespace: Namespace, configuration: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        shared = {"cniVersion": configuration["cniVersion"], "name": configuration["name"]}
        for plugin in configuration["plugins"]:
            given = {**plugin, **shared, **({"prevResult": result} if result else {})}
            if "ipam" in plugin:  # all nodes of the lab have one /var
                given["ipam"] = {**plugin["ipam"], "dataDir": str(self._leases)}
            variables = {
                "CNI_COMMAND": "ADD",
                "CNI_CONTAINERID": namespace.name,
                "CNI_NETNS": f"/run/netns/{namespace.name}",
                "CNI_IFNAME": "eth0",
                "CNI_PATH": str(PLUGINS),
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            }
            command = ["env", *(f"{name}={value}" for name, value in variables.items()), str(PLUGINS / plugin["type"])]
            result = json.loads(self._node.run(*command, stdin=json.dumps(given)))
        return result


def routes_of(node: Host) -> list[str]:
    """The routes of a node's main tables, as text."""
    return [*node.run("ip", "route").splitlines(), *node.run("ip", "-6", "route").splitlines()]


OUTSIDE = CLIENT
"""Who is outside of the cluster: the router."""
