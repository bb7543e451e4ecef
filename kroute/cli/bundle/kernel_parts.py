"""The parts of a bundle that the kernel has: IPVS, addresses, routes, sets and rules, sysctls, modules, connections."""

import asyncio
import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec

from kroute.checks.other_proxies import leftovers
from kroute.cli.bundle.agent_parts import output_of
from kroute.cli.bundle.archive import Part
from kroute.controllers.ipvs.sysctls import SYSCTLS
from kroute.firewall.backend import choose, clients_of, firewall_of, settled
from kroute.firewall.nftables.names import TABLES
from kroute.inspect import snapshot
from kroute.kernel.iptables.tools import VARIANTS, XtablesTools
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.objects import Table
from kroute.kernel.node_kernel import open_kernel
from kroute.model.addresses import Family
from kroute.reconcile.ledger import Ledger
from kroute.settings import Settings
from kroute.watchers.node import read_node_interfaces

PROC = Path("/proc")
MOST_ENTRIES = 2000
"""The entries of one set that are listed; all are counted."""


def kernel_parts(settings: Settings) -> list[Part]:
    """These parts, the most telling first."""
    return [
        Part("kernel/version.txt", "the kernel and the distribution", _version),
        Part("kernel/ipvs.json", "IPVS: every virtual server and real server, timeouts, daemons", _ipvs),
        Part(
            "kernel/addresses.json", "the VIPs that are bound, and the node's addresses", partial(_addresses, settings)
        ),
        Part("kernel/routes.json", "the VIPs' routes in the local table", partial(_routes, settings)),
        Part("kernel/all-routes.txt", "every route and rule of the node", _all_routes),
        Part("kernel/sets.json", "the backend of the firewall, and its sets", partial(_sets, settings)),
        Part("kernel/nftables.txt", "kroute's tables of nf_tables", _nftables),
        Part("kernel/chains.json", "every chain of nf_tables, by table", _chains),
        Part("kernel/iptables.txt", "kroute's rules of iptables, and how many others there are", _iptables),
        Part("kernel/sysctls.json", "the sysctls that matter", partial(_sysctls, settings)),
        Part("kernel/modules.txt", "the modules that are loaded", partial(_file, PROC / "modules")),
        Part("kernel/conntrack.json", "how many connections are tracked", partial(_connections, settings)),
        Part("kernel/leftovers.json", "traces of other proxies", partial(_leftovers, settings)),
    ]


async def _file(path: Path) -> bytes:
    return await asyncio.to_thread(path.read_bytes)


async def _version() -> str:
    told = [_read(path) or f"no {path}" for path in (PROC / "version", Path("/etc/os-release"))]
    return "\n".join([" ".join(os.uname()), *told, ""])


async def _ipvs() -> dict[str, object]:
    async with Ipvs() as ipvs:
        found = snapshot.of_kernel(await ipvs.read())
        return {
            "virtual_servers": found.virtual_servers,
            "timeouts": await ipvs.timeouts(),
            "daemons": [str(it) for it in await ipvs.sync_daemons()],
        }


async def _addresses(settings: Settings) -> dict[str, object]:
    interfaces = await read_node_interfaces(settings.dummy_interface)
    async with open_kernel(only=["addresses"]) as kernel:
        bound = sorted(await kernel.addresses.read(settings.dummy_interface))
    return {"bound": bound, "node": {name: sorted(each) for name, each in interfaces._asdict().items()}}


async def _routes(settings: Settings) -> dict[str, object]:
    async with open_kernel(only=["routes"]) as kernel:
        return dict(await kernel.routes.read(settings.dummy_interface))


async def _all_routes() -> bytes:
    if shutil.which("ip") is None:
        tables = {name: _read(PROC / "net" / name) for name in ("route", "ipv6_route", "fib_trie")}
        return "\n".join(f"# /proc/net/{name}\n{text}" for name, text in tables.items() if text).encode()
    commands = [f"ip {family} {what}" for family in ("-4", "-6") for what in ("route show table all", "rule show")]
    return b"\n".join([f"# {command}\n".encode() + await output_of(*command.split()) for command in commands])


async def _sets(settings: Settings) -> dict[str, object]:
    chosen = await choose(settings)
    settings = settled(settings, chosen)
    found: dict[str, object] = {"firewall": chosen}
    async with open_kernel(only=clients_of(settings)) as kernel:
        firewall = firewall_of(settings, kernel)
        for family in Family:
            for name, elements in (await firewall.read_sets(family)).items():
                some = sorted(elements, key=str)[:MOST_ENTRIES]
                found[firewall.set_name(family, name)] = {"entries": len(elements), "some": some}
    return found


async def _nftables() -> bytes:
    async with Nftables() as nftables:
        found = await nftables.tables()
        there = [table for table in TABLES.values() if table.listed_as in found]
        if shutil.which("nft") is None:
            return msgspec.json.format(msgspec.json.encode({str(it): await _rules(nftables, it) for it in there}))
    listed = [await output_of("nft", "--numeric", "list", "table", *table.listed_as) for table in there]
    return b"\n".join(listed) or b"there are no tables of kroute\n"


async def _rules(nftables: Nftables, table: Table) -> list[str]:
    """Each rule's chain and comment, which `kroute explain` says."""
    state = await nftables.read(table)
    return [f"{rule.chain}: {rule.comment}" for _, rule in state.rules] if state else []


async def _chains() -> dict[str, object]:
    async with Nftables() as nftables:
        chains = await nftables.chains()
    by_table: dict[str, list[str]] = {}
    for chain in chains:
        by_table.setdefault(f"{chain.family} {chain.table}", []).append(chain.name)
    return {table: {"chains": len(names), "some": names[:MOST_ENTRIES]} for table, names in by_table.items()}


async def _iptables() -> str:
    """The lines that name kroute. Of the others only the number of each table: they may name anything."""
    texts = []
    for variant in VARIANTS:
        saved = await XtablesTools().save(variant)
        if saved is None:
            texts.append(f"# {variant.tool('save')} is not installed")
            continue
        lines = saved.splitlines()
        own = [line for line in lines if "KROUTE" in line or line.startswith("*")]
        others = Counter(line.split()[0] for line in lines if line.startswith(("-A", ":")) and "KROUTE" not in line)
        texts += [f"# {variant}: {others[':'] + others['-A']} rules of others", *own]
    return "\n".join(texts) + "\n"


async def _sysctls(settings: Settings) -> dict[str, object]:
    names = {row.name for row in SYSCTLS}
    names |= {"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.ipv4.conf.all.rp_filter"}
    found = {name: _read(settings.proc_sys / name.replace(".", "/")) for name in names}
    for folder in ("net/ipv4/vs", "net/netfilter", "net/bridge"):
        for path in sorted((settings.proc_sys / folder).glob("*")):
            if path.is_file():
                found[f"{folder}/{path.name}".replace("/", ".")] = _read(path)
    return dict(sorted(found.items()))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


async def _connections(settings: Settings) -> dict[str, object]:
    tracked = {name: _read(settings.proc_sys / "net/netfilter" / f"nf_conntrack_{name}") for name in ("count", "max")}
    return {
        "tracked": tracked,
        "by_processor": _read(PROC / "net/stat/nf_conntrack"),
        "ipvs": _read(PROC / "net/ip_vs_stats"),
        "sockets": _read(PROC / "net/sockstat"),
        "ipvs_connections": await asyncio.to_thread(_ipvs_connections),
    }


def _ipvs_connections() -> dict[str, int] | None:
    """How many connections IPVS has in each state."""
    try:
        with (PROC / "net/ip_vs_conn").open() as lines:
            next(lines, "")
            return dict(Counter(fields[7] for line in lines if len(fields := line.split()) > 7))
    except OSError:
        return None


async def _leftovers(settings: Settings) -> list[object]:
    links = Ledger.open(settings.state_dir).links
    async with open_kernel(only=("links", "ipset")) as kernel, Nftables() as nftables:
        return list(await leftovers(kernel, await nftables.chains(), links))
