"""S17: cleanup leaves a node as it was before kroute, with every foreign object."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.firewall import has_legacy, has_nf_tables, tool
from tests.lab.kroute_process import KrouteProcess
from tests.lab.objects import endpoint_slices, service
from tests.scenarios.conftest import FAMILIES, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)

IPTABLES, IP6TABLES = tool("IPv4"), tool("IPv6")
SETS_OF_IPSET = (
    ("ipset create FOREIGN hash:ip", "ipset destroy FOREIGN"),
    ("ipset add FOREIGN 198.51.100.1", None),
)
TABLES_OF_NFT = (
    ("nft add table ip foreign", "nft delete table ip foreign"),
    ("nft add set ip foreign cluster-ip { type ipv4_addr; }", None),
    ("nft add element ip foreign cluster-ip { 198.51.100.1 }", None),
)
FOREIGN = (
    ("ip link add foreign0 type dummy", "ip link del foreign0"),
    ("ip address add 203.0.113.7/32 dev foreign0", None),
    ("ipvsadm -A -t 203.0.113.7:80 -s wlc -p 300", "ipvsadm -D -t 203.0.113.7:80"),
    ("ipvsadm -a -t 203.0.113.7:80 -r 198.51.100.9:80 -g -w 3", None),
    *(SETS_OF_IPSET if has_legacy() else ()),
    *(TABLES_OF_NFT if has_nf_tables() else ()),
    (f"{IPTABLES} -t nat -N FOREIGN", f"{IPTABLES} -t nat -X FOREIGN"),
    (f"{IPTABLES} -t nat -A FOREIGN -s 198.51.100.1 -j RETURN", f"{IPTABLES} -t nat -F FOREIGN"),
    (f"{IPTABLES} -t nat -I PREROUTING -j FOREIGN", f"{IPTABLES} -t nat -D PREROUTING -j FOREIGN"),
    (f"{IP6TABLES} -t nat -A POSTROUTING -s 2001:db8::1 -j ACCEPT",
     f"{IP6TABLES} -t nat -D POSTROUTING -s 2001:db8::1 -j ACCEPT"),
    ("ip rule add from 198.51.100.0/24 table 77", "ip rule del from 198.51.100.0/24 table 77"),
    ("sysctl -q -w net.ipv4.vs.expire_nodest_conn=1", "sysctl -q -w net.ipv4.vs.expire_nodest_conn=0"),
)  # fmt: skip
"""Foreign objects on a node: the commands that add and delete them. None: deleted along with another object."""


@contextmanager
def foreign_things(node: Node) -> Iterator[None]:
    with ExitStack() as stack:
        for add, delete in FOREIGN:
            node.run(*add.split())
            if delete:
                stack.callback(node.run, *delete.split())
        yield


async def test_s17_cleanup_leaves_every_node_as_it_was(world: World, deployment: Deployment) -> None:
    deployment.apply(
        service("web", *CLUSTER_IPS, ports={"TCP": 80, "UDP": 53}, sessionAffinity="ClientIP"),
        *endpoint_slices("web", world.web, {"TCP": 8080, "UDP": 5353}),
    )
    with ExitStack() as stack:
        for node in world.nodes:
            stack.enter_context(foreign_things(node))
            for sysctl in ("net.ipv4.ip_forward", "net.ipv4.vs.conntrack"):
                node.sysctl(sysctl, 0)
                stack.callback(node.sysctl, sysctl, {"net.ipv4.ip_forward": 1}.get(sysctl, 0))
        before = {node.name: node.snapshot() for node in world.nodes}
        await deployment.start("--masquerade-all", "--ipvs-tcp-timeout", "600s")
        for node in world.nodes:
            assert node.ipvs()["TCP 10.254.0.10:80"].real_servers
            assert node.sysctl("net.ipv4.vs.conntrack") == "1"
            assert "600" in node.run("ipvsadm", "-L", "--timeout")
        await deployment.cleanup()
        for node in world.nodes:
            changed = before[node.name].diff(node.snapshot())
            assert not changed, f"{node.name}: {changed}"
            assert not any(node.state_dir.iterdir())


async def test_s17_a_stop_cleans_the_node_where_that_is_asked_for(world: World, deployment: Deployment) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    node1 = world.cluster.node("node1")
    with foreign_things(node1):
        before = node1.snapshot()
        await deployment.start("--cleanup-on-exit", nodes=("node1",))
        assert node1.ipvs()["TCP 10.254.0.10:8080"].real_servers
        await deployment.agents["node1"].kill()
        assert node1.ipvs()["TCP 10.254.0.10:8080"].real_servers
        await deployment.start("--cleanup-on-exit", nodes=("node1",))
        await deployment.stop()
        changed = before.diff(node1.snapshot())
    assert not changed
    assert not any(node1.state_dir.iterdir())


async def test_s17_cleanup_can_say_so_and_wait(world: World, deployment: Deployment) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    node1 = world.cluster.node("node1")
    await deployment.start(nodes=("node1",))
    refused = await node1.kroute("cleanup", "--wait", "--node-name", "node1")
    assert await refused.wait() == 1
    assert "node1 is not clean" in refused.log.read_text()
    await deployment.stop()
    cleanup = await node1.kroute("cleanup", "--wait", "--node-name", "node1")
    await eventually(lambda: _ends_with(cleanup, "node1 is clean\n"))
    assert not node1.ipvs()
    assert cleanup.running
    assert await cleanup.terminate() == 0


def _ends_with(process: KrouteProcess, words: str) -> None:
    assert process.log.read_text().endswith(words)


async def test_s17_foreign_things_are_untouched_while_kroute_runs(world: World, deployment: Deployment) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    node1 = world.cluster.node("node1")
    with foreign_things(node1):
        await deployment.start(nodes=("node1",))
        table = node1.ipvs()
        assert table["TCP 203.0.113.7:80"].scheduler == "wlc"
        assert table["TCP 203.0.113.7:80"].real_servers["198.51.100.9:80"].method == "Route"
        assert node1.addresses("foreign0") == ["203.0.113.7/32"]
        rules = node1.run(f"{IPTABLES}-save", "-t", "nat")
        assert "-A FOREIGN -s 198.51.100.1/32 -j RETURN" in rules
        assert "-A PREROUTING -j FOREIGN" in rules
        if has_nf_tables():
            assert "198.51.100.1" in node1.run("nft", "list set ip foreign cluster-ip")
        assert not has_legacy() or "FOREIGN 198.51.100.1" in node1.run("ipset", "save", "FOREIGN")
        await deployment.cleanup()


async def test_s17_a_foreign_virtual_server_in_the_way_is_left_alone(world: World, deployment: Deployment) -> None:
    deployment.apply(
        service("web", *CLUSTER_IPS), service("other", "10.254.0.11"),
        *endpoint_slices("web", world.web), *endpoint_slices("other", world.web),
    )  # fmt: skip
    node1 = world.cluster.node("node1")
    node1.run("ipvsadm", "-A", "-t", "10.254.0.10:8080", "-s", "sed")
    try:
        await deployment.start(nodes=("node1",))
        assert node1.ipvs()["TCP 10.254.0.10:8080"].scheduler == "sed"
        assert not node1.ipvs()["TCP 10.254.0.10:8080"].real_servers
        assert len(await world.visitor.spread("10.254.0.11", 8080, 6)) == 3
        await deployment.cleanup()
        assert list(node1.ipvs()) == ["TCP 10.254.0.10:8080"]
    finally:
        node1.run("ipvsadm", "-D", "-t", "10.254.0.10:8080")


async def test_cleanup_of_a_clean_node_does_nothing(world: World, deployment: Deployment) -> None:
    node1 = world.cluster.node("node1")
    before = node1.snapshot()
    cleanup = await node1.kroute("cleanup")
    assert await cleanup.wait() == 0
    assert "nothing to undo" in cleanup.log.read_text()
    assert not before.diff(node1.snapshot())
