"""Host ports on the ports of Services: the CNI plugin portmap leads them to a pod, on every address of its node.

A VIP is one. So each ingress controller with the host ports 80 and 443 would have the calls to all Services on these
ports, and to the API server, if kroute did not keep VIPs from it, as kube-proxy does.
"""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.lab.cluster import Cluster
from tests.lab.deployment import Deployment, eventually
from tests.lab.feed import feed_for
from tests.lab.firewall import tool
from tests.lab.neighbours import run_portmap
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES, Family

PORT = 80
EXTERNAL_IPS = ("203.0.113.10", "2001:db8::10")


def iptables_of_this_firewall(directory: Path) -> Path:
    """A directory with the tools that write to the tables that kroute writes to.

    Like kube-proxy, kroute in legacy tables keeps nothing from a program that has its rules in those of nf_tables.
    """
    for name, family in (("iptables", "IPv4"), ("ip6tables", "IPv6")):
        (directory / name).symlink_to(str(shutil.which(tool(family))))
    return directory


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    """kroute in a cluster with a pod `web` on node2. The host port of `ingress` on node1 is the Service's port."""
    async with Cluster.start() as cluster:
        node1 = cluster.node("node1")
        web = await cluster.node("node2").pod("web", http=8080)
        await node1.pod("visitor")
        run_portmap(await node1.pod("ingress", http=8080), PORT, 8080, str(iptables_of_this_firewall(tmp_path)))
        cluster_ips = tuple(family.service_ip for family in FAMILIES)
        called = service("web", *cluster_ips, ports={"TCP": PORT}, externalIPs=list(EXTERNAL_IPS))
        deployment = Deployment(cluster, feed_for(cluster, tmp_path))
        deployment.apply(called, *endpoint_slices("web", [web], {"TCP": 8080}))
        await deployment.start(nodes=("node1",))
        yield deployment
        await deployment.cleanup()


@pytest.mark.each_firewall
async def test_a_host_port_takes_no_call_to_a_service(deployment: Deployment, family: Family) -> None:
    cluster = deployment.cluster
    node1 = cluster.node("node1")
    client = node1.pods[0]
    external = EXTERNAL_IPS[FAMILIES.index(family)]

    async def is_served() -> None:
        for address in (family.service_ip, external):
            for caller in (client, node1):
                assert (await caller.http(address, PORT)).host == "web"

    await eventually(is_served)
    for caller in (cluster.client, client):
        assert (await caller.http(family.of(node1), PORT)).host == "ingress"
