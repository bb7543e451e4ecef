"""The nat and filter rules on a real kernel, with real packets: what is accepted or refused, and which source is seen.

kroute does not run here. The tests fill the sets and create the virtual servers by hand, and try only the rules.
"""

import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest

from kroute.firewall.backend import clients_of
from kroute.firewall.iptables.address_sets import PREFIX
from kroute.kernel.iptables.tools import Variant
from kroute.kernel.node_kernel import open_kernel
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet
from kroute.settings import Settings
from tests.kernel.rules_by_hand import (
    HTTP,
    NODE_PORT,
    SETTINGS,
    SSH,
    TCP,
    TOOLS,
    VIPS,
    Kernel,
    Place,
    Segments,
    answers,
    at_once,
    is_refused,
    of,
)
from tests.lab.cluster import Cluster
from tests.lab.firewall import backend
from tests.lab.hosts import Host


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    cluster = Cluster(("node1", "node2"))
    try:
        node = cluster.node("node1")
        cluster.traffic.call(node.serve(http=SSH, udp=SSH))
        pod = cluster.traffic.call(node.pod("visitor"))
        web = cluster.traffic.call(cluster.node("node2").pod("web", http=8080, udp=8080))
        node.namespace.ip("link add vips type dummy\nlink set vips up\n")
        for family, vip in VIPS.items():
            node.run("ip", "address", "add", vip, "dev", "vips")
            cluster.client.run("ip", "route", "add", vip, "via", of(node, family))
        node.sysctl("net.ipv4.vs.conntrack", 1)
        for limit in ("net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit"):
            node.sysctl(limit, 0)  # the default is one refused datagram a second, too slow for these tests
        yield Place(cluster, node, pod, web)
    finally:
        cluster.close()


@pytest.fixture
async def kernel(place: Place) -> AsyncIterator[Kernel]:
    clients = clients_of(Settings("node1", firewall=backend()))
    async with AsyncExitStack() as stack:
        with place.node.namespace.inside():  # sockets and threads stay in this namespace; nothing else runs now
            opened = await stack.enter_async_context(open_kernel(only=clients))
        kernel = Kernel(place.node, opened)
        await kernel.make_sets()
        yield kernel
        await kernel.remove()
        place.node.run("ipvsadm", "-C")


by_family = pytest.mark.parametrize("family", Family, ids=str)
by_mode = pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.detect_local_mode)


@by_family
async def test_a_vip_refuses_ports_of_the_node_and_answers_ping(place: Place, kernel: Kernel, family: Family) -> None:
    vip = VIPS[family]
    await kernel.write_rules()
    await kernel.put(AddressSet.VIP, vip)
    for host in place.everybody:
        await is_refused(host, vip, SSH)
        host.run("busybox", "ping", "-c", "1", "-W", "2", vip)


@by_family
async def test_without_entries_nothing_is_refused(place: Place, kernel: Kernel, family: Family) -> None:
    await kernel.write_rules()
    for host in place.everybody:
        await answers(host, VIPS[family], SSH)


@by_family
async def test_the_nodes_own_addresses_are_as_they_were(place: Place, kernel: Kernel, family: Family) -> None:
    await kernel.write_rules()
    await kernel.put(AddressSet.VIP, VIPS[family])
    for host in place.everybody:
        await answers(host, of(place.node, family), SSH)


@by_family
async def test_an_open_connection_stays_and_no_new_one_is_made(place: Place, kernel: Kernel, family: Family) -> None:
    vip = VIPS[family]
    await kernel.write_rules()
    connections = [await host.connect(vip, SSH) for host in place.everybody]
    await kernel.put(AddressSet.VIP, vip)
    await kernel.put_port(AddressSet.NO_ENDPOINT, vip, SSH)
    for host, connection in zip(place.everybody, connections, strict=True):
        await is_refused(host, vip, SSH)
        await connection.ask()
        await connection.close()


@by_family
@pytest.mark.parametrize("which", [AddressSet.CLUSTER_IP, AddressSet.EXTERNAL, AddressSet.EXTERNAL_LOCAL])
async def test_a_vip_answers_on_the_ports_in_the_sets(
    place: Place, kernel: Kernel, family: Family, which: AddressSet
) -> None:
    """The virtual server alone admits nobody: IPVS takes packets after INPUT, and the node's own before it."""
    vip = VIPS[family]
    kernel.serve(vip, HTTP, of(place.web, family))
    await kernel.write_rules()
    await kernel.put(AddressSet.VIP, vip)
    for host in (place.pod, place.client):
        await is_refused(host, vip, HTTP)
    await place.node.http(vip, HTTP, source=(of(place.node, family), 0))
    await kernel.put_port(which, vip, HTTP)
    for host in (place.pod, place.client) if which is not AddressSet.EXTERNAL_LOCAL else (place.pod,):
        await answers(host, vip, HTTP)


@by_family
async def test_a_port_without_endpoints_is_refused_on_every_address(
    place: Place, kernel: Kernel, family: Family
) -> None:
    """This holds for every caller: without a virtual server the node's own packets meet the rules, too."""
    await kernel.write_rules()
    for address in (VIPS[family], of(place.node, family)):
        await kernel.put_port(AddressSet.NO_ENDPOINT, address, SSH)
        for host in place.everybody:
            await is_refused(host, address, SSH)


async def test_an_sctp_client_is_refused_at_once_too(place: Place, kernel: Kernel) -> None:
    """Over IPv4. REJECT can send no ICMPv6 message that an SCTP client heeds."""
    vip = VIPS[Family.IPV4]
    await kernel.write_rules()
    await kernel.put(AddressSet.VIP, vip)
    for host in place.everybody:
        with pytest.raises(OSError) as refused:
            await at_once(host.sctp, vip, HTTP)
        assert refused.value.errno == errno.ENOPROTOOPT


@by_family
@by_mode
async def test_a_port_without_local_endpoints_is_for_local_pods_and_processes_only(
    place: Place, kernel: Kernel, family: Family, settings: Settings
) -> None:
    address = of(place.node, family)
    kernel.serve(address, NODE_PORT, of(place.web, family))
    await kernel.put_port(AddressSet.EXTERNAL_LOCAL, address, NODE_PORT)
    await kernel.put_port(AddressSet.NO_LOCAL, address, NODE_PORT)
    await kernel.write_rules(settings)
    await is_refused(place.client, address, NODE_PORT)
    assert await answers(place.pod, address, NODE_PORT) == {of(place.pod, family)}
    assert await answers(place.node, address, NODE_PORT) == {address}


@by_family
@by_mode
async def test_on_a_cluster_ip_all_but_local_pods_are_masqueraded(
    place: Place, kernel: Kernel, family: Family, settings: Settings
) -> None:
    """The node's own packets, too: they have no input interface. Without a source route their source is the VIP."""
    vip = VIPS[family]
    kernel.serve(vip, HTTP, of(place.web, family))
    await kernel.put_port(AddressSet.CLUSTER_IP, vip, HTTP)
    await kernel.write_rules(settings)
    assert await answers(place.node, vip, HTTP) == {of(place.node, family)}
    assert await answers(place.pod, vip, HTTP) == {of(place.pod, family)}
    assert await answers(place.client, vip, HTTP) == {of(place.node, family)}


@by_family
async def test_each_combination_of_tcp_flags_is_judged_by_each_rule(
    place: Place, kernel: Kernel, family: Family
) -> None:
    """Conntrack calls SYN-FIN and SYN-ACK invalid, and not new; IPVS makes a connection of whatever has SYN."""
    client, node = of(place.client, family), of(place.node, family)
    await kernel.put(AddressSet.VIP, VIPS[family])
    for probed in (*PROBED.values(), LAST):
        if probed.sets and AddressSet.NO_ENDPOINT not in probed.sets:
            kernel.serve(VIPS[family], probed.port, of(place.web, family))
        for which in probed.sets:
            await kernel.put(which, VIPS[family], TCP, probed.port)
    await kernel.write_rules()
    for host in place.everybody:
        for name, probed in PROBED.items():
            with Segments(place, host, VIPS[family], family) as segments:
                fates = {flags: segments.send(probed.port, flags) for flags in range(64)}
                await segments.settle(LAST.port)
                found = {flags: segments.fate_of(number) for flags, number in fates.items()}
                wanted = {flags: _fate(name, flags, place, host) for flags in fates}
                assert found == wanted, (host, name)
                if probed.is_masqueraded and host is place.client:
                    assert client not in segments.sources, name
                    assert node in segments.sources, name


FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10


class Probed(NamedTuple):
    """A port of the VIP, and the sets that it is in."""

    port: int
    sets: tuple[AddressSet, ...]
    is_masqueraded: bool = False


PROBED = {
    "source ranges": Probed(8001, (AddressSet.EXTERNAL, AddressSet.RESTRICTED)),
    "no endpoint": Probed(8002, (AddressSet.NO_ENDPOINT,)),
    "no local endpoint": Probed(8003, (AddressSet.EXTERNAL_LOCAL, AddressSet.NO_LOCAL)),
    "a port of the node itself": Probed(SSH, ()),
    "a ClusterIP": Probed(8004, (AddressSet.CLUSTER_IP,), is_masqueraded=True),
    "policy Cluster": Probed(8005, (AddressSet.EXTERNAL,), is_masqueraded=True),
    "policy Local": Probed(8006, (AddressSet.EXTERNAL_LOCAL,)),
}
LAST = Probed(8007, (AddressSet.EXTERNAL,))
"""A packet to this port follows the others by the same way."""


def _fate(rule: str, flags: int, place: Place, host: Host) -> str:
    """What the rules do with a packet that belongs to no connection."""
    if not flags & SYN:
        return "passed"  # it may belong to a connection that conntrack has forgotten
    if rule == "source ranges":
        return "dropped"
    if rule in {"no endpoint", "a port of the node itself"}:
        return "refused" if not flags & RST else "dropped"  # nobody answers a reset
    if flags & (FIN | RST | ACK):
        return "dropped"
    return "refused" if rule == "no local endpoint" and host is place.client else "passed"


@by_family
async def test_with_snat_source_node_ip_pods_see_that_address(place: Place, kernel: Kernel, family: Family) -> None:
    """The node has two addresses on the wire. Among IPv6 addresses the kernel prefers the newest."""
    address, second = of(place.node, family), {Family.IPV4: "192.168.123.7", Family.IPV6: "fd00:192:168:123::7"}[family]
    assigned = f"{second}/{24 if family is Family.IPV4 else 64}"
    kernel.serve(address, NODE_PORT, of(place.web, family))
    await kernel.put_port(AddressSet.EXTERNAL, address, NODE_PORT)
    place.node.run("ip", "address", "add", assigned, "dev", "eth0", "noprefixroute")
    try:
        await kernel.write_rules(Settings("node1"))
        chosen = await answers(place.client, address, NODE_PORT)
        [other] = {address, second} - chosen
        await kernel.write_rules(Settings("node1", snat_source="node-ip"), **{family.name.lower(): other})
        assert await answers(place.client, address, NODE_PORT) == {other}
    finally:
        place.node.run("ip", "address", "del", assigned, "dev", "eth0")


@pytest.mark.legacy
@by_family
async def test_where_forward_drops_marked_packets_and_their_answers_pass(
    place: Place, kernel: Kernel, family: Family
) -> None:
    """IPVS is not involved: the client calls an address that is routed by the node and named in a set."""
    address, tool = of(place.web, family), TOOLS[family]
    await kernel.write_rules()
    place.client.run("ip", "route", "add", address, "via", of(place.node, family))
    place.node.run(tool, "-P", "FORWARD", "DROP")
    try:
        with pytest.raises(TimeoutError):
            await place.client.http(address, 8080, timeout=1.5)
        await kernel.put_port(AddressSet.EXTERNAL, address, 8080)
        assert await answers(place.client, address, 8080) == {of(place.node, family)}
    finally:
        place.node.run(tool, "-P", "FORWARD", "ACCEPT")
        place.client.run("ip", "route", "del", address)


@pytest.mark.legacy
@by_family
@by_mode
async def test_the_kernel_holds_the_rules_as_they_are_written(
    kernel: Kernel, family: Family, settings: Settings
) -> None:
    await kernel.write_rules(settings)
    for rules in kernel.legacy_rules(settings, family):
        with kernel.node.namespace.inside():
            assert await kernel.clients.xtables[Variant(family.number, "legacy")].differences(rules) == []
        printed = kernel.node.run(f"{TOOLS[family]}-save", "-t", rules.table).splitlines()
        wanted = [f"-A {chain} {rule}" for chain, texts in rules.chains.items() for rule in texts]
        wanted += [f"-A {chain} {rule}" for chain, rule in rules.jumps]
        assert sorted(line for line in printed if line.startswith("-A ")) == sorted(wanted)


@pytest.mark.legacy
@by_family
async def test_foreign_filter_rules_keep_their_place_and_counters(kernel: Kernel, family: Family) -> None:
    foreign = ["[0:0] -A INPUT -i nosuch0 -j FOREIGN", "[3:180] -A FOREIGN -i nosuch0 -j DROP"]
    restored = "\n".join(["*filter", ":FOREIGN - [0:0]", *foreign, "COMMIT", ""])
    kernel.node.run(f"{TOOLS[family]}-restore", "-c", "-n", stdin=restored)

    def others() -> list[str]:
        lines = kernel.node.run(f"{TOOLS[family]}-save", "-c", "-t", "filter").splitlines()
        return [line for line in lines if line.startswith("[") and "KROUTE" not in line]

    try:
        await kernel.write_rules()
        assert others() == foreign
        assert kernel.node.run(TOOLS[family], "-S", "INPUT").splitlines()[1].endswith("-j KROUTE-INPUT")
        with kernel.node.namespace.inside():
            await kernel.clients.xtables[Variant(family.number, "legacy")].remove("filter", PREFIX)
        assert others() == foreign
    finally:
        for command in ("-D INPUT -i nosuch0 -j FOREIGN", "-F FOREIGN", "-X FOREIGN"):
            kernel.node.run(TOOLS[family], *command.split())
