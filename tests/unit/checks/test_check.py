"""`kroute check` names exactly the prerequisites that are missing, with the next step."""

from pathlib import Path

import msgspec
import pytest

from kroute.checks import api_checks, node_checks
from kroute.checks.finding import Finding, Level
from kroute.checks.other_proxies import Trace, leftovers
from kroute.controllers.ipvs.sysctls import SYSCTLS, Circumstances, node_rows
from kroute.firewall.backend import firewall_of
from kroute.kernel.ipset import SetDefinition
from kroute.kernel.ipvs.objects import AddVirtualServer, VirtualServerOptions
from kroute.kernel.nftables.objects import NftChain
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts, NodeInterfaces
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.reconcile.ledger import Ledger, VirtualServerMade
from kroute.settings import Settings
from tests.apiserver import ApiServer
from tests.builders import node
from tests.fakes.ipvs import FakeIpvs
from tests.fakes.kernel import FakeKernel
from tests.fakes.node_kernel import FakeNodeKernel, open_fake_kernel
from tests.fakes.sysctl import FakeSysctls
from tests.unit.fake_node import new_kernel

CIRCUMSTANCES = Circumstances((6, 1), ipv6=True)
SETTINGS = Settings(node_name="node1", firewall="iptables")
KEY = VirtualServerKey(Protocol.TCP, "10.96.0.1", 80)


def levels(findings: list[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


# The API server


@pytest.mark.parametrize("permission", [*api_checks.needed(), api_checks.SERVICE_CIDRS], ids=str)
async def test_each_missing_verb_is_named_with_its_resource(permission: api_checks.Permission, tmp_path: Path) -> None:
    async with ApiServer(token="secret") as server:
        server.access.forbid(permission.verb, permission.resource)
        findings, _ = await api_checks.check_api(settings_for(server, tmp_path))
    [failure] = [finding for finding in findings if finding.level is Level.FAIL]
    assert failure.message == f"kroute may not {permission.verb} {permission.resource}"
    assert f'of API group "{permission.group}"' in failure.next_step


@pytest.mark.parametrize("permission", api_checks.ALLOCATOR, ids=lambda it: " ".join(it.rule))
async def test_only_an_agent_that_may_allocate_addresses_needs_the_rights_for_that(
    permission: api_checks.Permission, tmp_path: Path
) -> None:
    group, resource, verb = permission.rule
    async with ApiServer(token="secret") as server:
        server.access.forbid(verb, resource)
        without = settings_for(server, tmp_path)
        for settings, is_missing in (
            (without, False),
            (msgspec.structs.replace(without, allocate_load_balancer_ips=True), True),
        ):
            findings, _ = await api_checks.check_api(settings)
            failures = [finding for finding in findings if finding.level is Level.FAIL]
            assert [it.message for it in failures] == [f"kroute may not {verb} {resource}"] * is_missing
            assert all(f'API group "{group}"' in it.next_step for it in failures)


async def test_with_all_verbs_nothing_is_missing_and_the_node_is_found(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.apply({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node1"}, "spec": {}, "status": {}})
        findings, found = await api_checks.check_api(settings_for(server, tmp_path))
    assert set(levels(findings)) == {Level.OK}
    assert found.unknown == ""
    assert found.node is not None
    assert found.node.key.name == "node1"


async def test_a_server_out_of_reach_is_one_failure(tmp_path: Path) -> None:
    async with ApiServer() as server, server.out_of_reach():
        findings, known = await api_checks.check_api(settings_for(server, tmp_path))
    assert [(finding.check, finding.level) for finding in findings] == [("api", Level.FAIL)]
    assert findings[0].message.endswith("does not answer: Connection refused")
    assert known == api_checks.NOTHING_KNOWN


async def test_a_refused_token_is_said_to_be_renewed(tmp_path: Path) -> None:
    async with ApiServer(token="secret") as server:
        settings = settings_for(server, tmp_path)
        server.token = "another"
        findings, _ = await api_checks.check_api(settings)
    assert [(finding.check, finding.level) for finding in findings] == [("api", Level.FAIL)]
    assert "401" in findings[0].message
    assert "renew the token" in findings[0].next_step


async def test_no_such_node_is_not_taken_for_no_api(tmp_path: Path) -> None:
    async with ApiServer(token="secret") as server:
        settings = settings_for(server, tmp_path)
        _, there_is_none = await api_checks.check_api(settings)
        server.access.forbid("list", "nodes")
        _, forbidden = await api_checks.check_api(settings)
    facts = NodeFacts("node1")
    for known, level, words in (
        (there_is_none, Level.FAIL, "there is no Node node1"),
        (forbidden, Level.WARNING, "is not known: the API server does not list Nodes"),
        (api_checks.NOTHING_KNOWN, Level.WARNING, "is not known: no API server answers"),
    ):
        finding = node_checks.check_node_addresses(known.node, facts, NodeInterfaces(), known.unknown)[0]
        assert (finding.check, finding.level) == ("node", level)
        assert words in finding.message


@pytest.mark.parametrize(
    ("theirs", "level", "words"),
    [
        (1000.0, Level.OK, "agrees"),
        (996.0, Level.OK, "agrees"),
        (990.0, Level.WARNING, "is 9 s ahead of the API server's"),  # the server's time is cut to whole seconds
        (1010.0, Level.WARNING, "is 9 s behind the API server's"),
    ],
)
def test_a_clock_that_is_wrong_is_a_warning(theirs: float, level: Level, words: str) -> None:
    finding = api_checks.compare_clocks(theirs, before=1000.0, after=1001.0)
    assert finding.level is level
    assert words in finding.message


def settings_for(server: ApiServer, directory: Path) -> Settings:
    return Settings(node_name="node1", kubeconfig=server.kubeconfig(directory / "kubeconfig"), state_dir=directory)


# The node


def test_a_sysctl_that_kroute_can_set_is_no_failure() -> None:
    kernel = new_kernel()
    assert levels(node_checks.check_sysctls(FakeSysctls(kernel), CIRCUMSTANCES, SYSCTLS)) == [Level.OK]
    kernel.read_only_sysctls.add("net.ipv4.ip_forward")
    [failure] = node_checks.check_sysctls(FakeSysctls(kernel), CIRCUMSTANCES, SYSCTLS)
    assert "net.ipv4.ip_forward is 0, must be 1" in failure.message
    kernel.sysctls["net.ipv4.ip_forward"] = "1"
    assert levels(node_checks.check_sysctls(FakeSysctls(kernel), CIRCUMSTANCES, SYSCTLS)) == [Level.OK]


def test_a_sysctl_of_a_module_that_is_not_loaded_is_a_failure() -> None:
    kernel = new_kernel()
    del kernel.sysctls["net.ipv4.vs.conntrack"]
    [failure] = node_checks.check_sysctls(FakeSysctls(kernel), CIRCUMSTANCES, SYSCTLS)
    assert failure.message == "net.ipv4.vs.conntrack does not exist"


def test_a_sysctl_that_a_setting_asks_for_is_looked_at_too() -> None:
    most, timeout = "net.netfilter.nf_conntrack_max", "net.netfilter.nf_conntrack_udp_timeout"
    rows = node_rows(Settings("", conntrack_max_per_core=1, conntrack_min=131072, conntrack_udp_timeout=10))
    kernel = new_kernel()
    kernel.sysctls |= {most: "262144", "net.netfilter.nf_conntrack_buckets": "65536", timeout: "30"}
    kernel.read_only_sysctls |= {most, timeout}
    [failure] = node_checks.check_sysctls(FakeSysctls(kernel), CIRCUMSTANCES, rows)
    assert f"{timeout} is 30, must be 10" in failure.message
    kernel.sysctls[most] = "65536"
    [failure, _] = node_checks.check_sysctls(FakeSysctls(kernel), CIRCUMSTANCES, rows)
    assert f"{most} is 65536, must be at least " in failure.message
    del kernel.sysctls[most]
    [failure, _] = node_checks.check_sysctls(FakeSysctls(kernel), CIRCUMSTANCES, rows)
    assert (failure.message, failure.next_step) == (f"{most} does not exist", "load nf_conntrack")


@pytest.mark.parametrize(("ipv6", "level"), [(True, Level.FAIL), (False, Level.WARNING)])
async def test_tables_of_a_family_matter_if_the_node_serves_it(ipv6: bool, level: Level) -> None:
    async with open_fake_kernel(FakeKernel(ipv6=False)) as kernel:
        found = await node_checks.check_firewall(firewall_of(SETTINGS, kernel), ipv6=ipv6)
    assert set(levels(found)) == {level}


async def test_what_another_proxy_has_left_is_a_warning() -> None:
    kernel = new_kernel()
    clients = await FakeNodeKernel.of(kernel).open()
    nft_chains: list[NftChain] = []
    assert levels(node_checks.check_proxies(await leftovers(clients, nft_chains, set()))) == [Level.OK]
    kernel.add_link("kube-ipvs0", kind="dummy")
    for name in ("KUBE-LOAD-BALANCER", "KUBE-CLUSTER-IP", "KUBE-SRC-OF-SOMEBODY"):
        await clients.ipset.create(SetDefinition(name, "hash:ip,port"))
    kernel.table(Family.IPV4.number, "filter").chains |= {"KUBE-FIREWALL": [], "KUBE-ROUTER-SERVICES": []}
    nft_chains += [NftChain("ip", "kube-proxy", it) for it in ("services", "endpoints")]
    nft_chains += [NftChain("ip6", "nat", "KUBE-SERVICES"), NftChain("inet", "firewalld", "filter_INPUT")]
    kube_proxy, kube_router = node_checks.check_proxies(await leftovers(clients, nft_chains, set()))
    assert kube_proxy.level is Level.WARNING
    assert "link kube-ipvs0" in kube_proxy.message
    assert "set KUBE-CLUSTER-IP and 1 more" in kube_proxy.message
    assert "kroute migrate --from kube-proxy" in kube_proxy.next_step
    assert kube_proxy.message.count("nft table ip kube-proxy") == 1
    assert "nft chain ip6 nat KUBE-SERVICES" in kube_proxy.message
    assert "firewalld" not in kube_proxy.message
    assert "KUBE-FIREWALL" not in kube_proxy.message  # that chain is the kubelet's
    assert "KUBE-ROUTER-SERVICES" in kube_router.message


async def test_a_link_of_the_ledgers_is_no_trace_of_another_proxy() -> None:
    kernel = new_kernel()
    clients = await FakeNodeKernel.of(kernel).open()
    kernel.add_link("kube-ipvs0", kind="dummy")
    assert await leftovers(clients, [], {"kube-ipvs0"}) == []
    [trace] = await leftovers(clients, [], {"kube-dummy-if"})
    assert trace == Trace("kube-proxy", "link kube-ipvs0")
    without_iptables = msgspec.structs.replace(clients, xtables={})
    assert await leftovers(without_iptables, [], set()) == [trace], "a bundle opens no clients of iptables"


async def test_virtual_servers_of_others_are_a_warning(tmp_path: Path) -> None:
    async with FakeIpvs(new_kernel()) as ipvs:
        await ipvs.write([AddVirtualServer(KEY, VirtualServerOptions("rr", 0, 0, 0))])
        warning = await node_checks.check_virtual_servers(Ledger.open(tmp_path), ipvs)
        assert "10.96.0.1 port 80" in warning.message
        ledger = Ledger.open(tmp_path)
        ledger.record([VirtualServerMade(KEY)])
        ledger.close()
        assert (await node_checks.check_virtual_servers(Ledger.open(tmp_path), ipvs)).level is Level.OK


def test_the_nodes_addresses_must_be_on_the_node() -> None:
    interfaces = NodeInterfaces(frozenset({"192.168.1.5"}))
    here = NodeFacts("node1", ipv4="192.168.1.5")
    assert levels(node_checks.check_node_addresses(node(), here, interfaces)) == [Level.OK]
    [failure] = node_checks.check_node_addresses(node(), NodeFacts("node1", ipv4="192.168.1.6"), interfaces)
    assert "192.168.1.6 is said to be" in failure.message
    [failure] = node_checks.check_node_addresses(node(), NodeFacts("node1"), interfaces)
    assert "no address" in failure.message
    no_node, address = node_checks.check_node_addresses(None, here, interfaces)
    assert (no_node.level, address.level) == (Level.FAIL, Level.OK)
    assert "--node-name" in no_node.next_step
