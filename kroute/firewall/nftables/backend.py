"""The backend on nf_tables, and what the process and its kernel must have before it can be used."""

from kroute.firewall.protocol import Backend, Firewall
from kroute.kernel.node_kernel import NodeKernel
from kroute.settings import Settings


def _make(settings: Settings, kernel: NodeKernel) -> Firewall:
    from kroute.firewall.nftables.firewall import NftablesFirewall  # noqa: PLC0415  for this backend only

    return NftablesFirewall(settings, kernel.nftables)


async def _is_present(settings: Settings, kernel: NodeKernel) -> bool:
    return await _make(settings, kernel).is_present()


def _missing_libraries() -> list[str]:
    return []


NFTABLES = Backend(
    clients=("nftables",),
    presence_clients=("nftables",),
    modules={},  # the kernel itself loads nf_tables and all that belongs to it when it is asked
    overrules=False,
    capabilities={},
    missing_libraries=_missing_libraries,
    make=_make,
    is_present=_is_present,
)
