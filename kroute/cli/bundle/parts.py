"""The parts of a bundle: what the agent and its command line have, and what the kernel has."""

import asyncio
import os
import platform
import shutil
import sys
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from kroute import __version__
from kroute.base import program
from kroute.checks.other_proxies import leftovers
from kroute.cli.check import findings_of
from kroute.cli.plan import changes_of
from kroute.controllers.ipvs.sysctls import SYSCTLS
from kroute.firewall.backend import choose, clients_of, firewall_of, settled_on
from kroute.firewall.nftables.names import TABLES
from kroute.inspect import agent_socket, peers, pod_routes, policies, shared_state, snapshot, status, support
from kroute.kernel.iptables.tools import VARIANTS, save
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.objects import Table
from kroute.kernel.node_kernel import open_kernel
from kroute.model.addresses import Family
from kroute.reconcile.ledger import Ledger
from kroute.settings import Settings
from kroute.telemetry import statistics, zpages
from kroute.watchers.node import read_node_interfaces

Collected: TypeAlias = bytes | str | msgspec.Struct | Sequence[object] | Mapping[str, object]
Collect: TypeAlias = Callable[[], Awaitable[Collected]]


class Part(NamedTuple):
    """One file of the bundle. `about` says what it is for. What is no text becomes JSON."""

    name: str
    about: str
    collect: Collect


LOG_LINES = 2000
"""The newest lines of the journal, of the agent's unit and the director's."""
UNITS = ("kroute", "kroute-director")
TOOL_SECONDS = 10.0
LONGEST_ANSWER, LONGEST_OUTPUT = 16 << 20, 256 << 20
"""Bytes, of the metrics and of a program: a node may have a million routes."""


def agent_parts(settings: Settings) -> list[Part]:
    """The parts that the agent, or its command line, has: the most telling first."""
    ask = partial(_ask, settings.state_dir)
    lines = partial(agent_socket.ask, settings.state_dir)
    check = partial(findings_of, settings)
    return [
        Part("version.json", "kroute, Python, and the packages that they run with", _versions),
        Part("settings.json", "the settings in force, without secrets", partial(_settings, settings)),
        Part("status.json", "what is served, what is wrong, what to do", partial(ask, f"{status.QUESTION} shared")),
        Part("checks.json", "what `kroute check` finds, with the traces of other proxies", check),
        Part("show.json", "virtual servers as planned, with the kernel's counts", partial(ask, snapshot.QUESTION)),
        Part("policies.json", "the pods that network policies isolate", partial(ask, policies.GROUPS)),
        Part("peers.json", "the BGP sessions", partial(ask, peers.PEERS)),
        Part("routes.json", "the addresses that are announced", partial(ask, peers.ROUTES)),
        Part("pod-routes.json", "the ways to other nodes' pods", partial(ask, pod_routes.QUESTION)),
        Part("recent.jsonl", "the newest events of the agent's log", partial(lines, support.RECENT)),
        Part("plans.jsonl", "the plan of each Service", partial(lines, support.PLANS)),
        Part("services.jsonl", "the Services as the agent has read them", partial(lines, support.OBJECTS)),
        Part("shared.json", "what every node should plan", partial(ask, shared_state.QUESTION)),
        Part("changes.json", "what `kroute plan` would change", partial(changes_of, settings)),
        Part("statistics.json", "the agent's counters", partial(ask, statistics.QUESTION)),
        Part("measurements.json", "the newest latencies", partial(ask, statistics.NEWEST_QUESTION)),
        Part("metrics.txt", "what Prometheus gets", partial(_metrics, settings)),
        Part("ledger.txt", "what kroute has made on this node", partial(_file, settings.state_dir / "ledger")),
        Part("journal.txt", "the newest lines of the journal", _journal),
    ]


async def _ask(state_dir: Path, question: str) -> bytes:
    """The answer. Raises RuntimeError for none, which the agent gives if the kernel did not tell it what it needs."""
    if answer := await agent_socket.ask(state_dir, question):
        return answer
    raise RuntimeError("the agent could not answer: see `question.unanswered` in its log")


async def _versions() -> dict[str, object]:
    return {
        "kroute": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "arguments": sys.argv[1:2],
        "packages": {package.metadata["Name"]: package.version for package in metadata.distributions()},
    }


async def _settings(settings: Settings) -> bytes:
    return msgspec.json.format(zpages.configz(settings))


async def _metrics(settings: Settings) -> bytes:
    where = settings.metrics_bind_address
    if where is None:
        raise ValueError("--metrics-bind-address is off: there are none")
    local = where._replace(host=where.host if where.host not in {"", "0.0.0.0", "::"} else "127.0.0.1")
    return await asyncio.to_thread(_get, f"http://{local}/metrics")


def _get(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=TOOL_SECONDS) as answer:
        return bytes(answer.read(LONGEST_ANSWER))


async def _journal() -> bytes:
    units = [f"--unit={unit}" for unit in UNITS]
    return await output_of("journalctl", *units, f"--lines={LOG_LINES}", "--no-pager", "--output=short-iso")


async def output_of(*command: str) -> bytes:
    """The standard output of a program.

    Raises OSError if it is not installed, OverflowError if it prints too much, and RuntimeError if it fails or hangs.
    """
    try:
        ended = await program.run(command, seconds=TOOL_SECONDS, most=LONGEST_OUTPUT)
    except TimeoutError:
        raise RuntimeError(f"{command[0]} has not ended within {TOOL_SECONDS:g} s") from None
    if ended.code:
        raise RuntimeError(f"{command[0]} failed: {ended.errors.decode(errors='replace').strip()}")
    return ended.output


PROC = Path("/proc")
MOST_ENTRIES = 2000
"""The entries of one set that are listed; all are counted."""


def kernel_parts(settings: Settings) -> list[Part]:
    """The parts that the kernel has, the most telling first."""
    addresses = partial(_addresses, settings)
    return [
        Part("kernel/version.txt", "the kernel and the distribution", _version),
        Part("kernel/ipvs.json", "IPVS: every virtual server and real server, timeouts, daemons", _ipvs),
        Part("kernel/addresses.json", "the VIPs that are bound, and the node's addresses", addresses),
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
            "daemons": [str(daemon) for daemon in await ipvs.sync_daemons()],
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
    settings = settled_on(settings, chosen.name)
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
            rules = {str(table): await _rules(nftables, table) for table in there}
            return msgspec.json.format(msgspec.json.encode(rules))
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
        saved = await save(variant)
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
