"""EndpointSlices as the controllers of the real Kubernetes write them, and what kroute makes of them."""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.cluster import footprint
from tests.cluster.footprint import real_servers
from tests.cluster.machines import Cluster, ClusterError
from tests.cluster.web import Object, Web, pod, pod_spec, server, service

SELECTOR = "kubernetes.io/service-name"
MANY = 1000
HEARTBEAT = 10.0
"""Seconds between the heartbeats of a node, as a kubelet's."""


def slices(cluster: Cluster, of: str) -> list[dict[str, Any]]:
    found = cluster.kubectl("get", "endpointslices", "--selector", f"{SELECTOR}={of}", "-o", "json")
    return list(json.loads(found)["items"])


def endpoints(cluster: Cluster, of: str) -> list[dict[str, Any]]:
    return [it for one in slices(cluster, of) for it in one.get("endpoints") or ()]


def at(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def has(cluster: Cluster, node: str, service_port: str, servers: set[str]) -> None:
    """Wait until a virtual server has exactly these real servers that take connections."""

    def found() -> set[str]:
        return {it for it, weight in real_servers(cluster, node, service_port).items() if weight}

    cluster.wait_until(f"{node} has {len(servers)} real servers for {service_port}", lambda: found() == servers)


def pod_addresses(cluster: Cluster, selector: str) -> list[list[str]]:
    """The addresses of each pod."""
    pods = json.loads(cluster.kubectl("get", "pods", "--selector", selector, "-o", "json"))["items"]
    return [[it["ip"] for it in one["status"]["podIPs"]] for one in pods]


# A node without a machine, and pods that are objects alone


def placed(name: str, node: str, labels: Mapping[str, str]) -> Object:
    """A pod on a node without a machine."""
    spec = {"nodeName": node, "tolerations": [{"operator": "Exists"}], "automountServiceAccountToken": False}
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**pod_spec("pause"), **spec}}


def runs(name: str, address: str) -> Object:
    """The status that a kubelet would write of it."""
    condition = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [condition]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "status": status}


def write_status(cluster: Cluster, *objects: Object) -> None:
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    cluster.kubectl("apply", "--server-side", "--subresource=status", "-f", "-", content=items)


@contextlib.contextmanager
def node_without_machine(cluster: Cluster, name: str, zone: str = "zone3") -> Iterator[None]:
    """A Node that is ready as long as its heartbeats come, with the resources of node1. It has no kroute."""
    known = json.loads(cluster.kubectl("get", "node", "node1", "-o", "json"))["status"]
    metadata = {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    of_node = {"allocatable": known["allocatable"], "capacity": known["capacity"], "conditions": [ready]}
    over = threading.Event()

    def beat() -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
        }
        while True:
            now = cluster.run("date", "-u", "+%FT%T.%6NZ").strip()
            cluster.apply({**lease, "spec": {"holderIdentity": name, "renewTime": now, "leaseDurationSeconds": 40}})
            if over.wait(HEARTBEAT):
                return

    with cluster.having({**node, "spec": {"unschedulable": True}}):
        write_status(cluster, {**node, "status": of_node})
        heart = threading.Thread(target=beat)
        heart.start()
        try:
            yield
        finally:
            over.set()
            heart.join()
            lives = ("pods", "--field-selector", f"spec.nodeName={name}", "--force", "--grace-period=0")
            cluster.kubectl("delete", *lives)


# The tests


def test_endpoints_of_a_service_without_a_selector_are_mirrored_and_served(cluster: Cluster, web: Web) -> None:
    """An Endpoints object, as operators of databases write it, for what no selector finds."""
    addresses = [first for first, _ in pod_addresses(cluster, "app=web")]
    outside = service("outside", selector=None, ipFamilyPolicy="SingleStack", ports=[{"port": 80, "name": "http"}])

    def written(ips: list[str]) -> Object:
        subsets = [{"addresses": [{"ip": it} for it in ips], "ports": [{"name": "http", "port": 8080}]}]
        return {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "outside"}, "subsets": subsets}

    with cluster.having(outside, written(addresses)):
        [address] = cluster.addresses("outside")
        for node in cluster.nodes:
            has(cluster, node, f"{address}:80", {f"{it}:8080" for it in addresses})
            assert web.answers_from_pod(node, f"http://{address}", 1) <= web.names()
        [mirrored] = slices(cluster, "outside")
        labels = mirrored["metadata"]["labels"]
        assert labels["endpointslice.kubernetes.io/managed-by"] == "endpointslicemirroring-controller.k8s.io"
        cluster.apply(written(addresses[:1]))
        for node in cluster.nodes:
            has(cluster, node, f"{address}:80", {f"{addresses[0]}:8080"})


def test_a_service_gets_and_loses_its_second_family(cluster: Cluster, web: Web) -> None:
    pods = pod_addresses(cluster, "app=web")

    def becomes(policy: str) -> list[str]:
        cluster.kubectl("patch", "service", "families", "--patch", json.dumps({"spec": {"ipFamilyPolicy": policy}}))
        return cluster.addresses("families")

    with cluster.having(service("families", selector={"app": "web"}, ipFamilyPolicy="SingleStack")):
        assert len(cluster.addresses("families")) == 1
        both = becomes("RequireDualStack")
        assert len(both) == 2
        for node in cluster.nodes:
            for number, address in enumerate(both):
                has(cluster, node, at(address, 80), {at(it[number], 8080) for it in pods})
        assert web.answers_from_pod("node1", f"http://[{both[1]}]", 1) <= web.names()
        assert {it["addressType"] for it in slices(cluster, "families")} == {"IPv4", "IPv6"}
        assert becomes("SingleStack") == both[:1]
        for node in cluster.nodes:
            cluster.wait_until(
                f"{node} has one family",
                lambda on=node: both[1] not in footprint.bound(cluster, on),  # type: ignore[misc]
            )
        assert {it["addressType"] for it in slices(cluster, "families")} == {"IPv4"}


def test_a_pod_that_is_not_ready_is_published_if_its_service_says_so(cluster: Cluster, web: Web) -> None:
    never = server()
    never["containers"][0]["readinessProbe"] = {"exec": {"command": ["false"]}}
    unready = pod("unready", "node2", never)
    published = service("unready", ipFamilyPolicy="SingleStack", publishNotReadyAddresses=True)
    with cluster.having(unready, published):
        [address] = cluster.addresses("unready")
        cluster.wait_until("node1 has it", lambda: len(real_servers(cluster, "node1", f"{address}:80")) == 1)
        cluster.wait_until("it answers", lambda: web.answers_from_pod("node1", f"http://{address}", 1) == {"unready"})
        assert [it["conditions"]["ready"] for it in endpoints(cluster, "unready")] == [True]
        cluster.kubectl("patch", "service", "unready", "--patch", '{"spec": {"publishNotReadyAddresses": false}}')
        for node in cluster.nodes:
            has(cluster, node, f"{address}:80", set())
        with pytest.raises(ClusterError, match="exit code 7"):
            cluster.kubectl("exec", "client-node1", "--", "curl", "-sS", f"http://{address}")


def test_nothing_is_written_for_headless_services(cluster: Cluster, web: Web) -> None:
    before = footprint.at_rest(cluster)
    headless: Object = {"clusterIP": "None", "selector": {"app": "web"}}
    with cluster.having(service("headless", **headless), service("endless", **{**headless, "selector": None})):
        cluster.wait_until("it has endpoints of both families", lambda: len(slices(cluster, "headless")) == 2)
        with cluster.having(service("later", selector={"app": "web"})):  # what is served, shows that these are planned
            for node in cluster.nodes:
                for number, address in enumerate(cluster.addresses("later")):
                    has(
                        cluster,
                        node,
                        at(address, 80),
                        {at(it[number], 8080) for it in pod_addresses(cluster, "app=web")},
                    )
        cluster.wait_until("only what was there is there", lambda: footprint.of_nodes(cluster) == before)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("wish", ["PreferSameZone", "PreferSameNode", "Auto"])
def test_hints_of_three_zones_choose_the_endpoints_of_each_node(wish: str, cluster: Cluster, web: Web) -> None:
    """With one endpoint in each zone, each node has the one of its zone: the hints say so, in three ways."""
    labels = {"app": "zoned"}
    annotations = {"service.kubernetes.io/topology-mode": "Auto"} if wish == "Auto" else {}
    more: Object = {} if wish == "Auto" else {"trafficDistribution": wish}
    real = {
        node: {**pod(f"zoned-{node}", node, server()), "metadata": {"name": f"zoned-{node}", "labels": labels}}
        for node in cluster.nodes
    }
    with node_without_machine(cluster, "node3"), cluster.having(*real.values()):
        cluster.apply(placed("zoned-node3", "node3", labels))
        write_status(cluster, runs("zoned-node3", "10.245.0.1"))
        cluster.kubectl("wait", "--for=condition=Ready", "--timeout=10m", *(f"pod/zoned-{it}" for it in cluster.nodes))
        with cluster.having(service("zoned", annotations=annotations, ipFamilyPolicy="SingleStack", **more)):
            cluster.wait_until(
                "all three have hints",
                lambda: (
                    len(endpoints(cluster, "zoned")) == 3 and all("hints" in it for it in endpoints(cluster, "zoned"))
                ),
            )
            kind, own = ("forNodes", "nodeName") if wish == "PreferSameNode" else ("forZones", "zone")
            for it in endpoints(cluster, "zoned"):
                assert [hint["name"] for hint in it["hints"][kind]] == [it[own]]
            [address] = cluster.addresses("zoned")
            for node in cluster.nodes:
                chosen = {
                    f"{ip}:8080"
                    for it in endpoints(cluster, "zoned")
                    if it["nodeName"] == node
                    for ip in it["addresses"]
                }
                has(cluster, node, f"{address}:80", chosen)
                assert web.answers_from_pod(node, f"http://{address}", 3) == {f"zoned-{node}"}


@pytest.mark.thorough
def test_a_thousand_endpoints_in_ten_slices_are_all_real_servers(cluster: Cluster) -> None:
    names = {f"crowd-{number}": f"10.245.{1 + number // 250}.{1 + number % 250}" for number in range(MANY)}
    with node_without_machine(cluster, "node3"):
        cluster.apply(*(placed(name, "node3", {"app": "crowd"}) for name in names))
        write_status(cluster, *(runs(name, address) for name, address in names.items()))
        with cluster.having(service("crowd", ipFamilyPolicy="SingleStack")):
            [address] = cluster.addresses("crowd")
            for node in cluster.nodes:
                has(cluster, node, f"{address}:80", {f"{it}:8080" for it in names.values()})
            assert [len(it["endpoints"]) for it in slices(cluster, "crowd")] == [100] * (MANY // 100)
            gone, _ = names.popitem()
            cluster.kubectl("delete", "pod", gone, "--force", "--grace-period=0")
            for node in cluster.nodes:
                has(cluster, node, f"{address}:80", {f"{it}:8080" for it in names.values()})
