"""`kroute check` says under which name Calico has to find the VIPs, and whether it has."""

import pytest

from kroute.checks.finding import Level
from kroute.checks.neighbours import calico_traces, check_calico
from kroute.kernel.nftables.objects import NftChain
from kroute.model.addresses import Family
from tests.fakes.kernel import FakeKernel
from tests.fakes.node_kernel import FakeNodeKernel
from tests.unit.fake_node import new_kernel


def nft_chains(*names: str) -> list[NftChain]:
    return [NftChain("ip", "calico", name) for name in names]


def node_with(*chains: str, links: tuple[str, ...] = ()) -> FakeKernel:
    kernel = new_kernel()
    kernel.table(Family.IPV4.number, "filter").chains |= {name: [] for name in chains}
    for name in links:
        kernel.add_link(name, kind="veth")
    return kernel


async def found(kernel: FakeKernel, chains: list[NftChain], dummy_interface: str = "kube-ipvs0") -> tuple[Level, str]:
    clients = await FakeNodeKernel.of(kernel).open()
    finding = check_calico(await calico_traces(clients, chains), dummy_interface)
    return finding.level, str(finding)


async def test_without_calico_every_name_is_right() -> None:
    level, text = await found(node_with("CNI-FORWARD", links=("cni0",)), [], "kube-dummy-if")
    assert (level, "kube-dummy-if" in text) == (Level.OK, True)


@pytest.mark.parametrize(
    ("kernel", "chains"),
    [
        (node_with("cali-INPUT", "cali-forward-check"), []),
        (node_with(), nft_chains("filter-cali-INPUT", "filter-cali-forward-check")),
        (node_with(links=("cali0123456789a",)), []),
    ],
    ids=["legacy tables", "nf_tables", "links of pods"],
)
async def test_beside_calico_only_kube_ipvs0_is_right(kernel: FakeKernel, chains: list[NftChain]) -> None:
    assert (await found(kernel, chains))[0] is Level.OK
    level, text = await found(kernel, chains, "kube-dummy-if")
    assert level is Level.FAIL
    assert "Felix looks for kube-ipvs0, and the VIPs are on kube-dummy-if" in text
    assert "--dummy-interface kube-ipvs0" in text


async def test_a_felix_that_has_not_noticed_is_a_warning() -> None:
    level, text = await found(node_with("cali-INPUT"), [])
    assert level is Level.WARNING
    assert "restart calico-node" in text


async def test_calicos_ebpf_mode_serves_services_itself() -> None:
    level, text = await found(node_with(links=("bpfin.cali", "cali1")), [])
    assert level is Level.WARNING
    assert "serves Services itself" in text
