"""A node is taken over from kube-proxy in its nftables mode, on a kernel that has nf_tables alone, without a lost call.

kube-proxy's tables here have the chains, the map of Services and the marks that its `pkg/proxy/nftables` makes, for one
Service.
"""

import json

import pytest

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, goes_on
from tests.lab.objects import endpoint_slices, service
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.lab.world import FAMILIES, Family, World
from tests.scenarios.test_migrate import CLUSTER_IPS, FLAGS, migrate

pytestmark = pytest.mark.nftables

RULESET = """
table {family} kube-proxy {{
    comment "rules for kube-proxy"
    map service-ips {{
        type {address} . inet_proto . inet_service : verdict
        elements = {{ {vip} . tcp . 8080 : goto service-2QRHZV4L-default/web/tcp/ }}
    }}
    chain mark-for-masquerade {{ mark set mark or 0x4000; }}
    chain endpoint-1 {{ meta l4proto tcp dnat to {pod}:8080; }}
    chain service-2QRHZV4L-default/web/tcp/ {{
        {family} daddr {vip} tcp dport 8080 {family} saddr != {pods} jump mark-for-masquerade
        numgen random mod 1 vmap {{ 0 : goto endpoint-1 }}
    }}
    chain services {{ {family} daddr . meta l4proto . th dport vmap @service-ips; }}
    chain masquerading {{
        mark and 0x4000 == 0 return
        mark set mark xor 0x4000
        masquerade fully-random
    }}
    chain nat-prerouting {{ type nat hook prerouting priority dstnat; policy accept; jump services; }}
    chain nat-output {{ type nat hook output priority -100; policy accept; jump services; }}
    chain nat-postrouting {{ type nat hook postrouting priority srcnat; policy accept; jump masquerading; }}
}}
"""


def serve_as_kube_proxy(world: World, node: Node) -> None:
    for family in FAMILIES:
        is_ipv6 = ":" in family.service_ip
        pod = family.of(world.web[0])
        ruleset = RULESET.format(
            family="ip6" if is_ipv6 else "ip",
            address="ipv6_addr" if is_ipv6 else "ipv4_addr",
            vip=family.service_ip,
            pod=f"[{pod}]" if is_ipv6 else pod,
            pods=POD_RANGE6 if is_ipv6 else POD_RANGE,
        )
        node.run("nft", "-f", "-", stdin=ruleset)


async def ask(world: World, family: Family) -> str:
    return (await world.visitor.http(family.service_ip, 8080)).host


async def test_its_tables_go_once_kroute_serves_and_open_connections_go_on(
    world: World, deployment: Deployment
) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    node = world.cluster.node("node1")
    node.run("nft", "add table ip kube-proxy-of-another")
    serve_as_kube_proxy(world, node)
    try:
        assert {await ask(world, family) for family in FAMILIES} == {world.web[0].name}
        streams = [await world.visitor.open_stream(family.service_ip, 8080) for family in FAMILIES]
        found = json.loads(await migrate(node, "--from", "kube-proxy", "-o", "json"))
        assert found["nftTables"] == ["ip kube-proxy", "ip6 kube-proxy"]
        said = await migrate(node, "--from", "kube-proxy", "--take-over")
        assert "start kroute, and run this again" in said
        await deployment.start(*FLAGS["kube-proxy"], nodes=(node.name,))
        assert {await ask(world, family) for family in FAMILIES} == {world.web[0].name}, "kube-proxy's last state"
        said = await migrate(node, "--from", "kube-proxy", "--take-over")
        assert "delete nft table ip kube-proxy\n" in said
        assert "delete nft table ip6 kube-proxy\n" in said
        for stream in streams:
            await goes_on(stream)
            await stream.close()
        for family in FAMILIES:
            assert {await ask(world, family) for _ in range(6)} == {pod.name for pod in world.web}
        tables = node.run("nft", "list tables").splitlines()
        assert "table ip kube-proxy-of-another" in tables
        assert not {"table ip kube-proxy", "table ip6 kube-proxy"} & set(tables)
        assert "nothing of kube-proxy's is left" in await migrate(node, "--from", "kube-proxy", "--take-over")
    finally:
        for table in ("ip kube-proxy", "ip6 kube-proxy", "ip kube-proxy-of-another"):
            node.run("nft", f"add table {table}; delete table {table}")
