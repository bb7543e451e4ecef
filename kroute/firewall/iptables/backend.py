"""The backend on the legacy tables, and what the process and its kernel must have before it can be used.

Importing this module does not load the backend: a node whose firewall is another one asks it only whether it is there.
"""

from kroute.firewall.iptables import address_sets
from kroute.firewall.protocol import Backend, Firewall
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.addresses import Family
from kroute.settings import Settings


def _make(settings: Settings, kernel: NodeKernel) -> Firewall:
    from kroute.firewall.iptables.firewall import IptablesFirewall  # noqa: PLC0415  17 modules, for this backend only

    by_number = (kernel.xtables, kernel.nft)
    xtables, nft = ({family: it[family.number] for family in Family if family.number in it} for it in by_number)
    return IptablesFirewall(settings, kernel.ipset, xtables, nft)


def _missing_libraries() -> list[str]:
    from kroute.kernel.iptables.installed import missing_libraries  # noqa: PLC0415  as above

    return missing_libraries()


async def _is_present(_settings: Settings, kernel: NodeKernel) -> bool:
    return await address_sets.are_present(kernel.ipset)


IPTABLES = Backend(
    clients=("ipset", "xtables"),
    presence_clients=("ipset",),
    # The kernel itself loads the modules of tables, matches and set types when they are used.
    modules={"ip_set": "the sets that the masquerade rules look up"},
    overrules=True,
    capabilities={"NET_RAW": "libiptc reads and writes the rules by a raw socket"},
    missing_libraries=_missing_libraries,
    make=_make,
    is_present=_is_present,
)
