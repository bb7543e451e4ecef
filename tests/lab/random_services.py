"""Random Services with their EndpointSlices, of all kinds that an API server may hold, and some that it refuses.

Addresses and ports outside of the cluster are a Service's own, so that no two Services claim the same one.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.lab.cluster import Pod
from tests.lab.objects import Object
from tests.lab.topology import CLIENT, NODES, POD_RANGE, POD_RANGE6

EXTERNAL, EXTERNAL6 = "198.18.0.0/15", "2001:db8:18::/64"
"""The networks of external IPs and of load balancers."""
PROTOCOLS = {"TCP": "http", "UDP": "udp", "SCTP": "sctp"}
"""The call of the lab for each protocol."""
TARGETS = {"TCP": (8080, 8081), "UDP": (5353, 5354), "SCTP": (9090, 9091)}
"""The ports on which every pod serves."""
ZONES = {"node1": "zone-a", "node2": "zone-b", "node3": "zone-a"}
NODE_PORTS = range(30000, 32768)

_RANGES = (
    ("0.0.0.0/0", "::/0"),
    (f"{CLIENT.ip}/32", f"{CLIENT.ip6}/128"),
    (POD_RANGE, POD_RANGE6),
    (NODES["node1"].pod_networks),
    ("192.0.2.0/24",),
    (f"{CLIENT.ip6}/128",),
    ("192.0.2.0/24", "0.0.0.0/0"),
    (f"{NODES['node1'].ip}/32", f"{NODES['node1'].ip6}/128"),
)


class Drawn(NamedTuple):
    """A Service, what a load balancer writes into its status, and its slices."""

    service: Object
    ingress: list[Object]
    slices: list[Object]


class RandomServices:
    """Draws Services by a seed. `pods` are their endpoints; every pod serves on all of `TARGETS`."""

    def __init__(self, seed: str, pods: Sequence[Pod]) -> None:
        self._random = random.Random(seed)
        self._pods = pods
        self._numbers = itertools.count(1)
        self._node_ports = iter(self._random.sample(NODE_PORTS, len(NODE_PORTS)))
        self._external = itertools.count(1)

    def __iter__(self) -> Iterator[Drawn]:
        for number in self._numbers:
            service = self._service(f"s{number:04}")
            yield Drawn(service, self._ingress(service), self._slices(service))

    def _is(self, percent: int) -> bool:
        return self._random.randrange(100) < percent

    # ---- Services ------------------------------------------------------------------------------------------------

    def _service(self, name: str) -> Object:
        kind = self._random.choices(
            ("ClusterIP", "NodePort", "LoadBalancer", "headless", "ExternalName"), (25, 25, 40, 5, 5)
        )[0]
        if kind == "ExternalName":
            return self._object(name, {"type": kind, "externalName": "example.org"})
        spec: dict[str, Any] = {
            "type": "ClusterIP" if kind == "headless" else kind,
            "ports": self._ports(),
            **({"clusterIP": "None"} if kind == "headless" else {}),
            **self._families(),
            **(self._of_load_balancer() if kind == "LoadBalancer" else {}),
            **self._affinity(),
        }
        if self._is(30):
            spec["externalIPs"] = [self._address(is_ipv6=self._is(50)) for _ in range(self._random.randint(1, 2))]
        if kind in {"NodePort", "LoadBalancer"} and spec.get("allocateLoadBalancerNodePorts", True):
            for port in spec["ports"]:
                port["nodePort"] = next(self._node_ports)
        if self._is(10):
            spec["publishNotReadyAddresses"] = True
        if self._is(15):
            spec["trafficDistribution"] = self._random.choice(("PreferClose", "PreferSameZone", "PreferSameNode", "No"))
        return self._object(name, {**spec, **self._policies(spec)})

    def _affinity(self) -> dict[str, Any]:
        if not self._is(25):
            return {}
        seconds = self._random.choice((60, 600, 10_800, 86_400, 0, None))
        config = {} if seconds is None else {"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}}
        return {"sessionAffinity": "ClientIP", **config}

    def _policies(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Traffic policies, of which the external one needs a type or external IPs."""
        policies: dict[str, Any] = {}
        is_external = spec["type"] != "ClusterIP" or "externalIPs" in spec
        if self._is(30):
            policies["internalTrafficPolicy"] = self._random.choice(("Local", "Local", "Cluster"))
        if self._is(45 if is_external else 3):
            policies["externalTrafficPolicy"] = self._random.choice(("Local", "Local", "Cluster"))
        if spec["type"] == "LoadBalancer" and policies.get("externalTrafficPolicy") == "Local":
            policies["healthCheckNodePort"] = next(self._node_ports)
        return policies

    def _object(self, name: str, spec: dict[str, Any]) -> Object:
        metadata: dict[str, Any] = {"namespace": "default", "name": name, "labels": {"app": name}}
        if self._is(4):
            metadata["labels"]["service.kubernetes.io/service-proxy-name"] = "another"
        if self._is(4):
            metadata["labels"]["service.kubernetes.io/headless"] = ""
        return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}

    def _ports(self) -> list[Object]:
        ports: list[Object] = []
        for number in range(self._random.choices((1, 2, 3), (55, 30, 15))[0]):
            protocol = self._random.choices(tuple(TARGETS), (60, 25, 15))[0]
            port = self._random.choice((53, 80, 443, 8080, 9000 + number))
            target = self._random.choice((f"named-{number}", *TARGETS[protocol]))
            ports.append({"name": f"p{number}", "protocol": protocol, "port": port, "targetPort": target})
        if len(ports) == 1 and self._is(50):
            del ports[0]["name"]
        return ports

    def _families(self) -> dict[str, Any]:
        policy = self._random.choice(("SingleStack", "SingleStack", "PreferDualStack", "RequireDualStack"))
        families = self._random.sample(("IPv4", "IPv6"), 1 if policy == "SingleStack" else 2)
        return {"ipFamilyPolicy": policy, "ipFamilies": families}

    def _of_load_balancer(self) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        if self._is(30):
            spec["allocateLoadBalancerNodePorts"] = False
        if self._is(10):
            spec["loadBalancerClass"] = "example.org/balancer"
        if self._is(10):
            spec["loadBalancerIP"] = "192.0.2.77"
        if self._is(40):
            spec["loadBalancerSourceRanges"] = list(self._random.choice(_RANGES))
        return spec

    def _address(self, *, is_ipv6: bool) -> str:
        number = next(self._external)
        return f"2001:db8:18::{number:x}" if is_ipv6 else f"198.{18 + number // 65536}.{number // 256}.{number % 256}"

    def _ingress(self, service: Object) -> list[Object]:
        """What the load balancer's controller writes: most often an address of each family."""
        if service["spec"]["type"] != "LoadBalancer" or self._is(5):
            return []
        entries: list[Object] = [{"ip": self._address(is_ipv6=it == "IPv6")} for it in service["spec"]["ipFamilies"]]
        if self._is(10):
            entries.append({"hostname": "balancer.example.org"})
        for entry in entries:
            if "ip" in entry and self._is(60):
                entry["ipMode"] = self._random.choices(("VIP", "Proxy"), (75, 25))[0]
        return entries

    # ---- EndpointSlices ------------------------------------------------------------------------------------------

    def _slices(self, service: Object) -> list[Object]:
        """The slices of each family, between which the pods are shared out."""
        found: list[Object] = []
        families = service["spec"].get("ipFamilies", ("IPv4",))
        for family in (*families, *(("IPv4", "IPv6") if self._is(5) else ())):
            pods = self._random.sample(self._pods, self._random.choice((0, 1, 2, 3, 4, len(self._pods))))
            hints = self._random.choice((None, None, None, "zones", "nodes", "both", "some"))
            state = self._random.choice(("ready", "ready", "mixed", "mixed", "ending"))
            while pods:
                part, pods = pods[: (count := self._random.choice((2, 3, 9)))], pods[count:]
                again = [self._random.choice(part)] if self._is(5) else []
                pods += [pod for pod in again if pods]
                found.append(self._slice(service, f"{len(found)}", family, part, hints, state))
        return found

    def _slice(
        self, service: Object, suffix: str, family: str, pods: Sequence[Pod], hints: str | None, state: str
    ) -> Object:
        name = service["metadata"]["name"]
        labels = {"kubernetes.io/service-name": name}
        if self._is(3):
            labels["service.kubernetes.io/headless"] = ""
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"namespace": "default", "name": f"{name}-{suffix}", "labels": labels},
            "addressType": family,
            "endpoints": [self._endpoint(pod, family, hints, state) for pod in pods],
            "ports": self._slice_ports(service),
        }

    def _slice_ports(self, service: Object) -> list[Object]:
        """A port for each of the Service's, at times one less, one more, or one without a number."""
        ports = []
        for port in service["spec"].get("ports", ()):
            target = port["targetPort"]
            number = target if isinstance(target, int) else self._random.choice(TARGETS[port["protocol"]])
            made = {"name": port.get("name", ""), "protocol": port["protocol"], "port": number}
            if self._is(4):
                del made["port"]
            if not self._is(6):
                ports.append(made)
        if self._is(5):
            ports.append({"name": "other", "protocol": "TCP", "port": 8080})
        return ports

    def _endpoint(self, pod: Pod, family: str, hints: str | None, state: str) -> Object:
        made: Object = {"addresses": [pod.ip6 if family == "IPv6" else pod.ip], "conditions": self._conditions(state)}
        if not self._is(5):
            made["nodeName"] = pod.node.name
            made["zone"] = ZONES[pod.node.name]
        names = {}
        if hints in {"zones", "both"} or (hints == "some" and self._is(60)):
            names["forZones"] = [{"name": self._random.choice(("zone-a", "zone-b", ZONES[pod.node.name]))}]
        if hints in {"nodes", "both"}:
            names["forNodes"] = [{"name": self._random.choice((*NODES, pod.node.name))}]
        return {**made, "hints": names} if names else made

    def _conditions(self, state: str) -> dict[str, bool]:
        """`ready`: nothing is wrong; `ending`: everything terminates; `mixed`: what a rolling update passes through."""
        ready = self._random.choice(({"ready": True}, {"ready": True, "serving": True, "terminating": False}, {}))
        ending = {"ready": False, "serving": self._is(70), "terminating": True}
        others = (ready, ending, {"ready": False}, {"ready": False, "serving": False, "terminating": False})
        return {"ready": ready, "ending": ending, "mixed": self._random.choice(others)}[state]
