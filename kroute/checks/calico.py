"""Whether Calico is on the node, and whether its policies hold for what IPVS forwards.

Felix, Calico's agent, applies its policies to packets of IPVS only where a link `kube-ipvs0` exists: it looks for that
name and for no other (felix/dataplane/driver.go), and starts again when the link comes or goes
(felix/dataplane/linux/int_dataplane.go). It then has the chain `cali-forward-check`. The addresses of this link alone
are not the host's own to it (`InterfaceExclude`), but those of Services.
"""

from collections.abc import Iterable, Set
from typing import NamedTuple

from kroute.checks.finding import Finding, failed, ok, warning
from kroute.kernel.nftables.chains import NftChain
from kroute.kernel.node_kernel import NodeKernel

CALICO = "calico"
LINK = "kube-ipvs0"
"""Felix's KubeIPVSInterface."""
CHAIN = "cali-INPUT"
FORWARD_CHECK = "cali-forward-check"
"""Felix has this chain only while it knows the node for one with IPVS."""
BPF_LINK = "bpfin.cali"
WORKLOAD_LINKS = "cali"
"""The prefix of the links to pods (`InterfacePrefix`)."""
NFT_TABLE, NFT_PREFIX = "calico", "filter-"
"""Felix's nf_tables mode has one table, in which the names of chains begin with that of the legacy table."""


class CalicoTraces(NamedTuple):
    """What of Calico's is on the node. `knows_ipvs`: Felix treats it as a node with IPVS."""

    links: Set[str]
    has_chains: bool
    knows_ipvs: bool

    @property
    def is_here(self) -> bool:
        """Whether Felix applies policies on this node."""
        return self.has_chains or bool(self.links)


async def calico_traces(kernel: NodeKernel, nft_chains: Iterable[NftChain]) -> CalicoTraces:
    """Look for Calico's links and chains, in legacy tables and among those of nf_tables. Reads only."""
    chains = {name for xtables in kernel.xtables.values() for name in await xtables.chains("filter")}
    for it in nft_chains:
        chains.add(it.name.removeprefix(NFT_PREFIX) if it.table == NFT_TABLE else it.name)
    links = {name for name in await kernel.links.names() if name.startswith(WORKLOAD_LINKS) or name == BPF_LINK}
    return CalicoTraces(links, CHAIN in chains, FORWARD_CHECK in chains)


def check_calico(traces: CalicoTraces, dummy_interface: str) -> list[Finding]:
    """Whether the dummy interface has the name that Calico needs, and whether Felix has seen it."""
    if not traces.is_here:
        return [ok(CALICO, f"not on this node, so the VIPs may be on any interface ({dummy_interface})")]
    if BPF_LINK in traces.links:
        return [
            warning(
                CALICO,
                "its eBPF mode is at work here, which serves Services itself",
                "set bpfEnabled to false in the FelixConfiguration, or leave Services to Calico and remove kroute",
            )
        ]
    if dummy_interface != LINK:
        return [
            failed(
                CALICO,
                "policies of pods on this node do not hold for calls through Services: "
                f"Felix looks for {LINK}, and the VIPs are on {dummy_interface}",
                f"run kroute with `--dummy-interface {LINK}`, its default",
            )
        ]
    if traces.has_chains and not traces.knows_ipvs:
        return [
            warning(
                CALICO,
                f"Felix does not know yet that this node has IPVS: its chain {FORWARD_CHECK} is missing",
                f"start kroute, and if {LINK} exists already, restart calico-node on this node",
            )
        ]
    return [ok(CALICO, f"its policies hold for calls through Services, by the name {LINK}")]
