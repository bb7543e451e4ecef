"""S16: kroute writes its deleted objects again, and leaves foreign objects alone."""

import re
from collections.abc import Callable

import pytest

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.firewall import NFTABLES, backend, has_legacy, has_nf_tables, tool
from tests.lab.firewall_state import flush_rules, flush_sets
from tests.lab.kernel_state import Snapshot
from tests.lab.objects import endpoint_slices, service
from tests.scenarios.conftest import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
AT_ONCE = 1.0
RESYNC_PERIOD = 5.0
TOLD = backend() == NFTABLES
"""Whether the kernel tells kroute that somebody has changed its rules and sets."""

Damage = Callable[[Node, Family], None]


def address_deleted(node: Node, family: Family) -> None:
    prefix = {"IPv4": 32, "IPv6": 128}[family.name]
    node.run("ip", "address", "del", f"{family.service_ip}/{prefix}", "dev", "kube-ipvs0")


def route_deleted(node: Node, family: Family) -> None:
    flag = {"IPv4": "-4", "IPv6": "-6"}[family.name]
    node.run("ip", flag, "route", "del", "local", family.service_ip, "dev", "kube-ipvs0", "table", "local")


def link_deleted(node: Node, _: Family) -> None:
    node.run("ip", "link", "del", "kube-ipvs0")


def destination_deleted(node: Node, family: Family) -> None:
    real_server = next(iter(node.ipvs()[f"TCP {family.at(family.service_ip, 8080)}"].real_servers))
    node.run("ipvsadm", "-d", "-t", family.at(family.service_ip, 8080), "-r", real_server)


def virtual_server_deleted(node: Node, family: Family) -> None:
    node.run("ipvsadm", "-D", "-t", family.at(family.service_ip, 8080))


def ipvs_cleared(node: Node, _: Family) -> None:
    node.run("ipvsadm", "-C")


def rules_flushed(node: Node, family: Family) -> None:
    flush_rules(node, family.name)


def sets_flushed(node: Node, _: Family) -> None:
    flush_sets(node)


OF_BOTH_FAMILIES = (link_deleted, ipvs_cleared, sets_flushed)


def changes(before: Snapshot, node: Node) -> list[str]:
    """Return the differences. Ignored: a link's number and MAC address, and the kernel's routes that follow ours."""
    kernels_own = re.compile(r"local (\S+) dev kube-ipvs0 table local proto kernel scope host src \1 *")
    lines = [line.strip() for line in before.diff(node.snapshot()).splitlines() if line.startswith("  ")]
    signs: dict[str, int] = {}
    for line in lines:
        text = re.sub(r"^\d+: |link/ether \S+", "", line[1:])
        signs[text] = signs.get(text, 0) + (1 if line.startswith("+") else -1)
    return [text for text, sign in signs.items() if sign and not kernels_own.fullmatch(text)]


@pytest.mark.parametrize(
    ("damage", "within"),
    [
        (address_deleted, AT_ONCE),
        (route_deleted, AT_ONCE),
        (link_deleted, AT_ONCE),
        (destination_deleted, RESYNC_PERIOD),
        (virtual_server_deleted, RESYNC_PERIOD),
        (ipvs_cleared, RESYNC_PERIOD),
        (rules_flushed, AT_ONCE if TOLD else RESYNC_PERIOD),
        (sets_flushed, AT_ONCE if TOLD else RESYNC_PERIOD),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_s16_everything_is_back_in_time(
    damage: Damage, within: float, world: World, deployment: Deployment
) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start("--masquerade-all", nodes=("node1",))
    node1 = world.cluster.node("node1")
    before, log = node1.snapshot(), deployment.agents["node1"].log
    assert '"repair"' not in log.read_text()
    for family in FAMILIES[:1] if damage in OF_BOTH_FAMILIES else FAMILIES:
        damage(node1, family)

    def is_repaired() -> None:
        assert '"repair"' in log.read_text(), "the damage has not been noticed"
        changed = changes(before, node1)
        assert not changed, changed

    await eventually(is_repaired, within)
    for ip in CLUSTER_IPS:
        assert len(await node1.spread(ip, 8080, 6)) == 3


async def test_s16_foreign_entries_added_meanwhile_are_untouched(world: World, deployment: Deployment) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    node1 = world.cluster.node("node1")
    node1.run("ipvsadm", "-A", "-t", "10.254.0.10:9999", "-s", "wlc")
    node1.run("ipvsadm", "-A", "-t", f"{node1.ip}:7777", "-s", "rr")
    if has_nf_tables():
        node1.run("nft", "add table ip foreign")
        node1.run("nft", "add set ip foreign theirs { type ipv4_addr; }")
    if has_legacy():
        node1.run("ipset", "create", "FOREIGN", "hash:ip")
    node1.run(tool("IPv4"), "-t", "nat", "-A", "POSTROUTING", "-s", "198.51.100.1", "-j", "ACCEPT")
    try:
        before = node1.snapshot()
        virtual_server_deleted(node1, FAMILIES[0])

        def is_as_before() -> None:
            changed = before.diff(node1.snapshot())
            assert not changed, changed

        await eventually(is_as_before, 2 * RESYNC_PERIOD)
    finally:
        node1.run("ipvsadm", "-D", "-t", "10.254.0.10:9999")
        node1.run("ipvsadm", "-D", "-t", f"{node1.ip}:7777")
        if has_nf_tables():
            node1.run("nft", "delete table ip foreign")
        if has_legacy():
            node1.run("ipset", "destroy", "FOREIGN")
        node1.run(tool("IPv4"), "-t", "nat", "-D", "POSTROUTING", "-s", "198.51.100.1", "-j", "ACCEPT")
