"""What iptables-nft writes is read and deleted over netlink, and the chains of legacy tables are seen by any socket."""

import socket
import subprocess
from collections.abc import Iterator

import pytest

from kroute.checks.other_proxies import KUBE_PROXY, KUBE_ROUTER, OTHER_PROXIES, OtherProxy
from kroute.kernel.iptables.nft_rules import TABLES, read_rules
from kroute.kernel.iptables.table_digest import legacy_chains, legacy_outline, read_table, table_digest
from kroute.kernel.iptables.tools import SavedTable, legacy_tables, parse_saved
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.objects import Table
from kroute.migration.leftovers import part_of
from kroute.migration.removal import remove_nft_rules
from tests import real_proxies
from tests.kernel.nodes import RealNode, run
from tests.lab.other_proxy_rules import direct_server_return_rules, kube_router_rules
from tests.lab.recorded_node import loadable
from tests.real_proxies import KUBE_PROXY_IPTABLES

FOREIGN = """\
*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A DOCKER -i docker0 -j RETURN
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
COMMIT
*mangle
-A PREROUTING -d 203.0.113.10/32 -p tcp -m tcp --dport 80 -j MARK --set-xmark 0x7/0xffffffff
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
COMMIT
"""
FOREIGN6 = FOREIGN.replace("172.17.0.0/16", "fd01::/64").replace("203.0.113.10/32", "2001:db8::10/128")
TOOLS: dict[int, str] = {socket.AF_INET: "iptables-nft", socket.AF_INET6: "ip6tables-nft"}


@pytest.fixture
def namespace(namespace: None) -> Iterator[None]:
    """A namespace in which no table is seen before the test: all tables go with it."""
    yield
    run("nft flush ruleset")


def restore(tool: str, rules: str) -> None:
    finished = subprocess.run(
        [f"{tool}-restore", "--noflush"], input=rules, check=False, capture_output=True, text=True
    )
    assert not finished.returncode, finished.stderr


def saved(tool: str) -> dict[str, SavedTable]:
    return {table.name: table for table in parse_saved(run(f"{tool}-save"))}


async def recognised_as_by_the_tool(nftables: Nftables, family: int, proxy: OtherProxy) -> int:
    """Assert that the same is read as by the tool; returns how many chains and rules are the proxy's."""
    count, by_tool = 0, saved(TOOLS[family])
    for name in TABLES:
        found = await read_rules(nftables, Table(family, name), proxy.chains.fullmatch)
        assert (found is not None) == (name in by_tool)
        if found is None:
            continue
        table, expected = found[1], by_tool[name]
        assert set(table.chains) == set(expected.chains)
        assert table.policies.items() <= expected.policies.items()
        part, wanted = part_of(proxy, table), part_of(proxy, expected)
        assert (part is None) == (wanted is None)
        if part is None or wanted is None:
            continue
        assert set(part.chains) == set(wanted.chains)
        assert (part.kept, part.marks) == (wanted.kept, wanted.marks)
        by_chain = (sorted(rules, key=lambda rule: rule.chain) for rules in (part.rules, wanted.rules))
        for rule, told in zip(*by_chain, strict=True):
            assert (rule.chain, rule.target) == (told.chain, told.target)
            assert set(rule.words) <= set(told.words)
        count += len(part.chains) + len(part.rules)
    return count


@pytest.mark.nftables
@pytest.mark.parametrize(("family", "tool"), TOOLS.items(), ids=TOOLS.values())
async def test_what_the_real_kube_proxy_left_is_read_as_by_the_tool_and_removed_alone(
    node: RealNode, family: int, tool: str
) -> None:
    proxy = OTHER_PROXIES[KUBE_PROXY]
    restore(tool, FOREIGN if family == socket.AF_INET else FOREIGN6)
    before = saved(tool)
    left = loadable(real_proxies.text(KUBE_PROXY_IPTABLES, f"{tool.removesuffix('-nft')}-save"))
    restore(tool, "\n".join(line for line in left.splitlines() if "KUBE-FIREWALL" not in line) + "\n")
    assert await recognised_as_by_the_tool(node.nftables, family, proxy) > 90
    for table in TABLES:
        await remove_nft_rules(node.nftables, Table(family, table), proxy)
    assert saved(tool) == before


@pytest.mark.nftables
async def test_ports_of_sctp_are_read_as_by_the_tool(node: RealNode) -> None:
    rules = ["-p sctp -m sctp --dport 80 -j ACCEPT", "-p sctp -m sctp ! --dport 80 -j ACCEPT"]
    restore("iptables-nft", "\n".join(["*nat", *(f"-A PREROUTING {rule}" for rule in rules), "COMMIT", ""]))
    found = await read_rules(node.nftables, Table(socket.AF_INET, "nat"), KUBE_PROXY.startswith)
    assert found is not None
    assert [rule.text for rule in found[1].rules] == [f"PREROUTING {rules[0]}", "PREROUTING -p sctp -m sctp -j ACCEPT"]
    assert all(rule.text in run("iptables-nft-save -t nat") for rule in found[1].rules[:1])


@pytest.mark.nftables
async def test_direct_server_return_of_kube_routers_is_read_as_by_the_tool_and_removed_alone(node: RealNode) -> None:
    proxy = OTHER_PROXIES[KUBE_ROUTER]
    restore("iptables-nft", FOREIGN)
    before = saved("iptables-nft")
    rules = kube_router_rules("", "192.0.2.1", "10.244.1.0/24", [("10.244.1.2", "10.96.0.10", 80)], is_ipv6=False)
    without_sets = "\n".join(line for line in rules.splitlines() if "--match-set" not in line)
    restore("iptables-nft", without_sets + "\n" + direct_server_return_rules())
    assert await recognised_as_by_the_tool(node.nftables, socket.AF_INET, proxy) == 7
    for table in TABLES:
        await remove_nft_rules(node.nftables, Table(socket.AF_INET, table), proxy)
    assert saved("iptables-nft") == before


@pytest.mark.legacy
async def test_the_chains_of_legacy_tables_are_seen_without_the_tools_and_without_a_raw_socket(node: RealNode) -> None:
    assert "nat" not in (legacy_tables(socket.AF_INET) or ())
    run("iptables-legacy -t nat -N KUBE-SERVICES")
    run("iptables-legacy -t nat -A PREROUTING -j KUBE-SERVICES")
    run("iptables-legacy -t nat -N DOCKER")
    run("ip6tables-legacy -t nat -L")
    assert "nat" in (legacy_tables(socket.AF_INET) or ())
    assert sorted(legacy_chains(socket.AF_INET, "nat")) == ["DOCKER", "KUBE-SERVICES"]
    assert legacy_chains(socket.AF_INET6, "nat") == []
    digest = table_digest(socket.AF_INET, read_table(socket.AF_INET, "nat"))
    outline = legacy_outline(socket.AF_INET, "nat")
    assert legacy_outline(socket.AF_INET, "nat") == outline
    run("iptables-legacy -t nat -X DOCKER")
    assert table_digest(socket.AF_INET, read_table(socket.AF_INET, "nat")) != digest
    assert legacy_outline(socket.AF_INET, "nat") != outline
