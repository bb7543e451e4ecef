"""Who else enforces network policies on a node, and whether it is at work."""

import pytest

from kroute.checks import policy_enforcers
from kroute.checks.finding import Level
from kroute.checks.node_checks import other_enforcers
from kroute.checks.policy_enforcers import KUBE_ROUTERS_FIREWALL, check_enforcers, examples, present
from kroute.kernel.nftables.objects import NftChain
from kroute.model.addresses import Family
from tests.fakes.node_kernel import FakeNodeKernel
from tests.unit.fake_node import new_kernel

CLOSED: frozenset[int] = frozenset()


@pytest.mark.parametrize(
    ("chains", "tables", "name"),
    [
        ({"cali-FORWARD", "cali-fw-cali1"}, set(), "Calico"),
        ({"filter-cali-FORWARD"}, {"calico"}, "Calico"),
        ({"CILIUM_FORWARD"}, set(), "Cilium"),
        ({"ANTREA-FORWARD"}, set(), "Antrea"),
        ({"KUBE-ROUTER-FORWARD", "KUBE-POD-FW-ABCDEFGHIJKLMNOP"}, set(), "kube-router's firewall"),
        ({"KUBE-NWPLCY-TAIL"}, set(), "kube-router's firewall"),
        ({"KUBE-NWPLCY-COMMON"}, {"kube-router-filter-ipv6"}, "kube-router's firewall"),
        (set(), {"kube-network-policies"}, "kube-network-policies or kindnet"),
        (set(), {"kindnet-network-policies"}, "kube-network-policies or kindnet"),
    ],
)
def test_an_enforcer_is_known_by_its_chains_and_tables(chains: set[str], tables: set[str], name: str) -> None:
    assert list(examples(chains, tables)) == [name]


def test_what_else_is_on_a_node_is_no_enforcer() -> None:
    """Service proxies, the kubelet, flannel, docker, and kroute's own tables and chains."""
    names = "KUBE-ROUTER-SERVICES KUBE-SERVICES KUBE-FORWARD KUBE-FIREWALL FLANNEL-FWD DOCKER KROUTE-FORWARD cali-x"
    assert examples(names.split(), {"kroute", "kroute-policies", "kube-proxy", "filter", "firewalld"}) == {}


@pytest.mark.parametrize(
    ("listening", "said"),
    [
        (frozenset({20244}), "kube-router's health port 20244 is open"),
        (frozenset({6444}), "K3s' port for its agent 6444 is open"),
        (CLOSED, "it may have ended, since its port is closed"),
        (None, ""),
    ],
    ids=["kube-router", "K3s", "neither", "not known"],
)
def test_a_port_tells_an_enforcer_from_what_it_has_left(
    listening: frozenset[int] | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_enforcers, "listening_ports", lambda: listening)
    [found] = present({KUBE_ROUTERS_FIREWALL.name: "chain KUBE-ROUTER-INPUT"})
    assert found.why == ", ".join(filter(None, ("chain KUBE-ROUTER-INPUT", said)))


def test_a_link_is_a_trace_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cilium may write no rule at all, and Antrea's policies are in Open vSwitch."""
    monkeypatch.setattr(policy_enforcers, "listening_ports", lambda: CLOSED)
    monkeypatch.setattr(policy_enforcers, "interface_index", {"cilium_host": 3, "antrea-gw0": 4}.get)
    assert [found.enforcer.name for found in present({})] == ["Cilium", "Antrea"]


async def test_an_enforcer_at_work_fails_and_what_one_has_left_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_enforcers, "listening_ports", lambda: frozenset({9099}))
    kernel = new_kernel()
    clients = await FakeNodeKernel.of(kernel).open()
    assert [found.level for found in check_enforcers(await other_enforcers(clients, []))] == [Level.OK]
    kernel.table(Family.IPV4.number, "filter").chains |= {"cali-FORWARD": []}
    nft_chains = [NftChain("ip6", "filter", "KUBE-ROUTER-OUTPUT")]
    calico, kube_router = check_enforcers(await other_enforcers(clients, nft_chains))
    assert (calico.level, kube_router.level) == (Level.FAIL, Level.WARNING)
    assert "Calico enforces network policies here, too (chain cali-FORWARD, its health port 9099 is open)" in str(
        calico
    )
    assert "chain KUBE-ROUTER-OUTPUT, it may have ended" in kube_router.message
    assert "kroute migrate --from kube-router --take-over" in kube_router.next_step
