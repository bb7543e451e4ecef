"""The backend on the legacy tables, and what the process and its kernel must have before it can be used."""

from kroute.firewall.iptables.firewall import IptablesFirewall
from kroute.firewall.protocol import Backend
from kroute.kernel.iptables.installed import missing_libraries
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.addresses import Family
from kroute.settings import Settings


def _make(settings: Settings, kernel: NodeKernel) -> IptablesFirewall:
    by_number = (kernel.xtables, kernel.nft)
    xtables, nft = ({family: it[family.number] for family in Family if family.number in it} for it in by_number)
    return IptablesFirewall(settings, kernel.ipset, xtables, nft)


IPTABLES = Backend(
    clients=("ipset", "xtables"),
    presence_clients=("ipset",),
    # The kernel itself loads the modules of tables, matches and set types when they are used.
    modules={"ip_set": "the sets that the masquerade rules look up"},
    overrules=True,
    capabilities={"NET_RAW": "libiptc reads and writes the rules by a raw socket"},
    missing_libraries=missing_libraries,
    make=_make,
)
