"""Which backend a node has: the one place where a further one is named."""

from collections.abc import Mapping

from kroute.firewall.iptables.firewall import IptablesFirewall
from kroute.firewall.iptables.prerequisites import CAPABILITIES, MODULES
from kroute.firewall.protocol import Firewall
from kroute.kernel.ipset import Ipset
from kroute.kernel.iptables.xtables import Xtables
from kroute.model.addresses import Family
from kroute.settings import Settings

__all__ = ["CAPABILITIES", "MODULES", "firewall_of"]


def firewall_of(settings: Settings, ipset: Ipset, xtables: Mapping[Family, Xtables]) -> Firewall:
    """The node's firewall, on these kernel clients."""
    return IptablesFirewall(settings, ipset, xtables)
