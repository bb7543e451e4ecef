"""A controller gives Services of the type LoadBalancer addresses in their status, and kroute serves those addresses."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address
from typing import Any

import pytest

from tests.cluster.footprint import bound, real_servers
from tests.cluster.machines import Cluster, ClusterError
from tests.cluster.web import NODE_PORT, Web, service

VIP, PROXY = "example.org/vip", "example.org/proxy"
POOLS = {VIP: ("192.0.2.10", "2001:db8:2::10"), PROXY: ("198.51.100.10", "2001:db8:51::10")}
MODES = {VIP: "VIP", PROXY: "Proxy"}
"""The addresses that each class of load balancers has, and its `ipMode`."""
FORWARDS = """
import http.server, sys, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"balancer:" + urllib.request.urlopen(sys.argv[2] + self.path).read())
http.server.HTTPServer((sys.argv[1], 80), Handler).serve_forever()
"""
"""A load balancer that takes connections at an address, and calls a node port for them."""


class Controller:
    """Gives each Service of its classes the addresses of its families, and takes them back from one of another type.

    Held against MetalLB's (controller/service.go, `convergeBalancer`, and the role of its manifest): it allocates by
    the Service's families, writes the status subresource alone, and clears the status of a Service that is no longer
    of the type. MetalLB leaves `ipMode` to the API server, which makes it VIP; the controllers of clouds write Proxy.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.failure: Exception | None = None

    def follow(self, names: "subprocess.Popen[str]") -> None:
        """Look at each Service that a watch names."""
        assert names.stdout is not None
        try:
            for name in names.stdout:
                self.reconcile(name.strip())
        except ClusterError as error:
            self.failure = error

    def reconcile(self, name: str) -> None:
        found = self._cluster.kubectl("get", "service", name, "--ignore-not-found", "-o", "json")
        if not found:
            return
        spec, status = (json.loads(found)[part] for part in ("spec", "status"))
        has = status.get("loadBalancer", {}).get("ingress", [])
        chosen = spec.get("loadBalancerClass", "")
        wanted = []
        if spec["type"] == "LoadBalancer" and chosen in POOLS:
            addresses = dict(zip(("IPv4", "IPv6"), POOLS[chosen], strict=True))
            wanted = [{"ip": addresses[family], "ipMode": MODES[chosen]} for family in spec["ipFamilies"]]
        if has != wanted:
            patch = json.dumps({"status": {"loadBalancer": {"ingress": wanted or None}}})
            self._cluster.kubectl("patch", "service", name, "--subresource=status", "--type=merge", "--patch", patch)


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[Controller]:
    watch = ["kubectl", "get", "services", "--watch", "-o", r'jsonpath={.metadata.name}{"\n"}']
    with cluster.wire.inside():
        names = subprocess.Popen(watch, env=cluster.environment, stdout=subprocess.PIPE, text=True)
    with names:
        made = Controller(cluster)
        thread = threading.Thread(target=made.follow, args=[names])
        thread.start()
        try:
            yield made
        finally:
            names.kill()
            thread.join()
    assert made.failure is None


def balanced(kind: str) -> dict[str, Any]:
    """A Service of a class, for the pods of `web`."""
    return service("balanced", type="LoadBalancer", loadBalancerClass=kind, selector={"app": "web"})


def ingress(cluster: Cluster) -> list[dict[str, str]]:
    found = cluster.kubectl("get", "service", "balanced", "-o", "json")
    return list(json.loads(found)["status"].get("loadBalancer", {}).get("ingress", []))


def is_served(cluster: Cluster, node: str, address: str, count: int) -> bool:
    """Whether a node has bound an address, and so many real servers for it."""
    return address in bound(cluster, node) and len(real_servers(cluster, node, f"{at(address)}:80")) == count


def is_gone(cluster: Cluster, node: str, address: str) -> bool:
    return address not in bound(cluster, node) and not real_servers(cluster, node, f"{at(address)}:80")


def at(address: str) -> str:
    return f"[{address}]" if ":" in address else address


@contextlib.contextmanager
def routed(cluster: Cluster, addresses: tuple[str, ...], node: str) -> Iterator[None]:
    """Have the host beside the nodes send packets to these addresses to a node, as the router of a BGP speaker does."""
    gateways = {ip_address(it).version: it for it in cluster.nodes[node].place.addresses}
    for address in addresses:
        cluster.run("ip", "route", "add", address, "via", gateways[ip_address(address).version])
    try:
        yield
    finally:
        for address in addresses:
            cluster.run("ip", "route", "del", address)


@pytest.mark.usefixtures("controller")
def test_an_address_of_mode_vip_is_served_on_each_node_until_the_type_changes(cluster: Cluster, web: Web) -> None:
    addresses = POOLS[VIP]
    with cluster.having(balanced(VIP)):
        cluster.wait_until("it has its addresses", lambda: [it["ip"] for it in ingress(cluster)] == [*addresses])
        for node in cluster.nodes:
            for address in addresses:
                cluster.wait_until(f"{node} serves it", partial(is_served, cluster, node, address, len(web.names())))
                assert web.answers_from_pod(node, f"http://{at(address)}", 1) <= web.names()
            with routed(cluster, addresses, node):
                for address in addresses:
                    assert web.answers_from_wire(f"http://{at(address)}") == web.names()
        cluster.kubectl(
            "patch", "service", "balanced", "--patch", '{"spec": {"type": "ClusterIP", "loadBalancerClass": null}}'
        )
        for node in cluster.nodes:
            for address in addresses:
                cluster.wait_until(f"{node} has removed it", partial(is_gone, cluster, node, address))
        cluster.wait_until("the status is clear", lambda: ingress(cluster) == [])


@pytest.mark.usefixtures("controller")
def test_an_address_of_mode_proxy_is_left_to_the_load_balancer(cluster: Cluster, web: Web) -> None:
    """kroute binds it nowhere: a pod's call goes out to the balancer, which comes back by the node port."""
    address, node = POOLS[PROXY][0], next(iter(cluster.nodes.values()))
    cluster.run("ip", "address", "add", f"{address}/32", "dev", "wire")
    with cluster.wire.inside():
        to = [address, f"http://{node.address}:{NODE_PORT}"]
        balancer = subprocess.Popen([sys.executable, "-c", FORWARDS, *to], stderr=subprocess.DEVNULL)
    try:
        with cluster.having(balanced(PROXY)):
            cluster.wait_until("it has its addresses", lambda: [it["ip"] for it in ingress(cluster)] == [*POOLS[PROXY]])
            assert {it["ipMode"] for it in ingress(cluster)} == {"Proxy"}
            cluster_ip = cluster.addresses("balanced")[0]
            for on in cluster.nodes:
                cluster.wait_until(f"{on} serves it", partial(is_served, cluster, on, cluster_ip, len(web.names())))
                assert web.answers_from_pod(on, f"http://{address}", 2) <= {f"balancer:{it}" for it in web.names()}
                assert address not in bound(cluster, on)
    finally:
        balancer.kill()
        balancer.wait()
        cluster.run("ip", "address", "del", f"{address}/32", "dev", "wire")
