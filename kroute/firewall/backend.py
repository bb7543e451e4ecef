"""The firewall backends, what each needs, and the choice between them. A new backend is named here and nowhere else.

Importing this module loads none of them.

A caller that opens the kernel for a node's firewall first settles which backend that is (`choose`, `settled`), and then
opens only the clients of that backend (`clients_of`).
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from kroute.firewall.iptables.address_sets import POLICIES, PREFIX, are_present
from kroute.firewall.protocol import Backend, Firewall, PolicyFirewall, Removable
from kroute.kernel.node_kernel import CORE_CLIENTS, ClientName, NodeKernel, open_kernel
from kroute.model.addresses import Family
from kroute.settings import AUTO, Settings


def _make_iptables(settings: Settings, kernel: NodeKernel) -> Firewall:
    from kroute.firewall.iptables.firewall import IptablesFirewall  # noqa: PLC0415  where it is used only

    return IptablesFirewall(settings, kernel.ipset, kernel.xtables)


def _make_iptables_policies(settings: Settings, kernel: NodeKernel) -> PolicyFirewall:
    from kroute.firewall.iptables.policy_tables import PolicyChains  # noqa: PLC0415  as above

    return PolicyChains(kernel.ipset, kernel.xtables, settings.refusals_logged_to)


def _iptables_lacks() -> list[str]:
    from kroute.kernel.iptables.xtables import missing_tools  # noqa: PLC0415  as above

    return missing_tools()


def _make_nftables(settings: Settings, kernel: NodeKernel) -> Firewall:
    from kroute.firewall.nftables.firewall import NftablesFirewall  # noqa: PLC0415  as above

    return NftablesFirewall(settings, kernel.nftables)


def _make_nftables_policies(settings: Settings, kernel: NodeKernel) -> PolicyFirewall:
    from kroute.firewall.nftables.policy_tables import PolicyTables  # noqa: PLC0415  as above

    return PolicyTables(kernel.nftables, settings.refusals_logged_to)


async def _is_nftables_present(settings: Settings, kernel: NodeKernel) -> bool:
    return await _make_nftables(settings, kernel).is_present() or await _has_nftables_policies(kernel)


async def _has_nftables_policies(kernel: NodeKernel) -> bool:
    from kroute.firewall.nftables.names import POLICY_TABLES, listed  # noqa: PLC0415  as above

    return bool(await listed(kernel.nftables, POLICY_TABLES))


BACKENDS: Mapping[str, Backend] = {
    "nftables": Backend(
        clients=("nftables",),
        presence_clients=("nftables",),
        modules={},  # the kernel itself loads nf_tables and all that belongs to it when it is asked
        overrules=False,
        capabilities={},
        missing_tools=list,  # it needs none
        make=_make_nftables,
        make_policies=_make_nftables_policies,
        is_present=_is_nftables_present,
        has_policies=_has_nftables_policies,
    ),
    "iptables": Backend(
        clients=("ipset", "xtables"),
        presence_clients=("ipset",),
        # The kernel itself loads the modules of tables, matches and set types when they are used.
        modules={"ip_set": "the sets that the masquerade rules look up"},
        overrules=True,
        capabilities={"NET_RAW": "the iptables tools read and write the rules by a raw socket"},
        missing_tools=_iptables_lacks,
        make=_make_iptables,
        make_policies=_make_iptables_policies,
        is_present=lambda _settings, kernel: are_present(kernel.ipset, PREFIX, POLICIES),
        has_policies=lambda kernel: are_present(kernel.ipset, POLICIES),
    ),
}
"""By the name that `--firewall` gives them."""

PREFERRED, OLDEST = "nftables", "iptables"
"""`auto` chooses PREFERRED, but OLDEST where that has left something on the node, or where PREFERRED cannot be used."""

IPV6 = Path("/proc/net/if_inet6")
"""Does not exist where the kernel runs without IPv6."""


class Choice(msgspec.Struct, frozen=True):
    """The backend of this node, and why it is this one, as a clause. `given`: a setting names it, and not `auto`."""

    name: str
    why: str
    given: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


async def choose(settings: Settings) -> Choice:
    """The backend that the settings name; for `auto`, the one that fits this node. Changes nothing, but loads modules.

    Raises KernelError when the kernel does not tell its state.
    """
    if settings.firewall != AUTO:
        return Choice(settings.firewall, "the setting `firewall` names it", given=True)
    if await _is_present(settings, BACKENDS[OLDEST]):
        return Choice(OLDEST, f"its sets are on this node already; --firewall {PREFERRED} replaces them")
    if lacking := await _lacking(settings, PREFERRED):
        return Choice(OLDEST, f"{PREFERRED} cannot be used here: {lacking}")
    return Choice(PREFERRED, "the kernel has what it needs")


def settled_on(settings: Settings, name: str) -> Settings:
    """The settings with the backend of this name."""
    return msgspec.structs.replace(settings, firewall=name)


def firewall_of(settings: Settings, kernel: NodeKernel) -> Firewall:
    """The node's firewall, on the kernel clients that its backend uses. The backend must be settled."""
    return BACKENDS[settings.firewall].make(settings, kernel)


def policies_of(settings: Settings, kernel: NodeKernel) -> PolicyFirewall:
    """The same for network policies."""
    return BACKENDS[settings.firewall].make_policies(settings, kernel)


def clients_of(settings: Settings) -> tuple[ClientName, ...]:
    """The clients of the settled backend."""
    return BACKENDS[settings.firewall].clients


def node_clients(settings: Settings) -> tuple[ClientName, ...]:
    """All clients of a node whose backend is settled."""
    return (*CORE_CLIENTS, *clients_of(settings))


async def present(settings: Settings) -> list[str]:
    """The backends that have left something on this node, in this or an earlier run. Loads no module."""
    return [name for name, backend in BACKENDS.items() if await _is_present(settings, backend)]


@asynccontextmanager
async def open_what_stands(settings: Settings) -> AsyncIterator[tuple[Settings, NodeKernel, list[Removable]]]:
    """The node's kernel and what all backends that are present may have left, for undoing it.

    The settings are settled on one of them. Raises KernelError as `present` and `open_kernel` do.
    """
    names = await present(settings)
    clients = {client for name in names for client in BACKENDS[name].clients}
    settings = settled_on(settings, next(iter(names or BACKENDS)))
    async with open_kernel(settings.proc_sys, only=(*CORE_CLIENTS, *clients)) as kernel:
        yield settings, kernel, [one for name in names for one in removables(settings, name, kernel)]


def removables(settings: Settings, name: str, kernel: NodeKernel) -> list[Removable]:
    """What the backend of this name may have left. `kernel` has its clients."""
    backend = BACKENDS[name]
    return [backend.make(settings, kernel), backend.make_policies(settings, kernel)]


async def _is_present(settings: Settings, backend: Backend) -> bool:
    async with open_kernel(settings.proc_sys, only=backend.presence_clients) as kernel:
        return await backend.is_present(settings, kernel)


async def _lacking(settings: Settings, name: str) -> str:
    """What the backend lacks here, as a sentence; "" if it can be used."""
    backend = BACKENDS[name]
    missing: Iterable[str] = backend.missing_tools()
    if not missing:
        async with open_kernel(settings.proc_sys, only=backend.clients) as kernel:
            found = await backend.make(settings, kernel).prerequisites()
        families = Family if await asyncio.to_thread(IPV6.exists) else (Family.IPV4,)
        missing = (sentence for family in families for sentence in found.missing[family])
    return next(iter(missing), "").rpartition("; ")[0]
