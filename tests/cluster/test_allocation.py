"""The chart's value has one of the agents give Services of type LoadBalancer addresses, which all nodes serve."""

import json
from functools import partial
from typing import Any

from tests.cluster.agents import SYSTEM, agents, events, said
from tests.cluster.installation import upgrade
from tests.cluster.machines import Cluster
from tests.cluster.test_load_balancers import at, is_gone, is_served, routed
from tests.cluster.web import Web, service

RANGES = "{192.0.2.20/31,2001:db8:2::20/127}"
FIRST, SECOND = ["192.0.2.20", "2001:db8:2::20"], ["192.0.2.21", "2001:db8:2::21"]
ON = ("--set", "settings.allocate-load-balancer-ips=true", "--set", f"settings.loadbalancer-ip-range={RANGES}")
OFF = ("--set", "settings.allocate-load-balancer-ips=false", "--set", "settings.loadbalancer-ip-range=null")


def balanced(name: str) -> dict[str, Any]:
    return service(name, type="LoadBalancer", selector={"app": "web"})


def ingress(cluster: Cluster, name: str) -> list[str]:
    found = json.loads(cluster.kubectl("get", "service", name, "-o", "json"))
    return [it["ip"] for it in found["status"].get("loadBalancer", {}).get("ingress", [])]


def has(cluster: Cluster, name: str, addresses: list[str]) -> bool:
    return ingress(cluster, name) == addresses


def allocator(cluster: Cluster) -> str:
    """The node whose agent has the Lease; empty if none has."""
    lease = json.loads(cluster.kubectl(*SYSTEM, "get", "lease", "kroute-allocator", "-o", "json"))
    return str(lease["spec"]["holderIdentity"] or "").partition("_")[0]


def waits(cluster: Cluster) -> bool:
    """Whether an Event says that `third` gets no address."""
    found = events(cluster, "involvedObject.name=third", "reason=NoLoadBalancerAddress")
    return {"IPv4", "IPv6"} <= {word for event in found for word in event["message"].split()}


def test_services_get_addresses_that_all_nodes_serve_and_another_agent_takes_over(cluster: Cluster, web: Web) -> None:
    upgrade(cluster, *ON)
    try:
        with cluster.having(balanced("first")):
            cluster.wait_until("it has addresses", partial(has, cluster, "first", FIRST))
            for node in cluster.nodes:
                for address in FIRST:
                    served = partial(is_served, cluster, node, address, len(web.names()))
                    cluster.wait_until(f"{node} serves {address}", served)
                with routed(cluster, tuple(FIRST), node):
                    for address in FIRST:
                        assert web.answers_from_wire(f"http://{at(address)}") == web.names()
            holder = allocator(cluster)
            cluster.kubectl(*SYSTEM, "delete", "pod", agents(cluster)[holder]["pod"], "--wait=false")
            with cluster.having(balanced("second")):
                cluster.wait_until("the other has, too", partial(has, cluster, "second", SECOND))
                cluster.apply(balanced("third"))
                cluster.wait_until("an Event says that none is free", lambda: waits(cluster))
            cluster.wait_until("it gets what is free again", partial(has, cluster, "third", SECOND))
            cluster.kubectl("delete", "service", "third")
            assert ingress(cluster, "first") == FIRST
        for node in cluster.nodes:
            for address in FIRST:
                cluster.wait_until(f"{node} has removed it", partial(is_gone, cluster, node, address))
        assert not [line for line in said(cluster) if line["event"] in {"allocator.failed", "load_balancer.refused"}]
    finally:
        upgrade(cluster, *OFF)
