"""Chooses the node's firewall backend. A new backend is named here and nowhere else."""

from kroute.firewall.iptables.firewall import IptablesFirewall
from kroute.firewall.iptables.prerequisites import CAPABILITIES, CLIENTS, MODULES
from kroute.firewall.protocol import Firewall
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.addresses import Family
from kroute.settings import Settings

__all__ = ["CAPABILITIES", "CLIENTS", "MODULES", "firewall_of"]


def firewall_of(settings: Settings, kernel: NodeKernel) -> Firewall:
    """The node's firewall, on the kernel clients that its backend uses."""
    xtables, nft = ({family: it[family.number] for family in Family if it} for it in (kernel.xtables, kernel.nft))
    return IptablesFirewall(settings, kernel.ipset, xtables, nft)
