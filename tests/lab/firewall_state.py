"""kroute's sets and rules in the kernel of a node, read and damaged with the tools that an operator has.

Each function does so for the backend in use: with ipset and iptables-legacy, or with nft. Set entries are those of
plans, so that a test can compare the two.
"""

import json
import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_network, summarize_address_range
from typing import Any, Protocol

from kroute.firewall.sets import SHAPES, ElementPart
from kroute.model.plan import AddressSet, Element, SetEntry
from tests.lab.firewall import NFTABLES, backend

TABLES = {"IPv4": "ip kroute", "IPv6": "ip6 kroute"}
"""The tables of the nftables backend."""
LEGACY_TABLES = ("nat", "filter", "mangle")
"""The tables in which the iptables backend may have chains."""
_PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}
_NAMES = {number: name for name, number in _PROTOCOLS.items()}
_NFT_SETS = {which: "source-network" if which is AddressSet.SOURCE_RANGE else which.lower() for which in AddressSet}
_OF_NFT = {name: which for which, name in _NFT_SETS.items()}
_OF_KROUTE = re.compile(r"^-[NA] KROUTE-| -j KROUTE-")


class Runs(Protocol):
    """A node, or its namespace."""

    @property
    def run(self) -> Callable[..., str]: ...


def entries(node: Runs) -> set[SetEntry]:
    """Return the entries of kroute's sets of both families."""
    return _nft_entries(node) if backend() == NFTABLES else _ipset_entries(node)


def description(node: Runs) -> list[str]:
    """Return the sets' definitions and entries, in an order that does not depend on the kernel's."""
    if backend() != NFTABLES:
        return sorted(line for line in node.run("ipset", "save").splitlines() if line)
    tables = [node.run("nft", "-t", "list", "table", *table.split()) for table in TABLES.values()]
    return [*"".join(tables).splitlines(), *sorted(map(str, entries(node)))]


def set_name(entry: SetEntry) -> str:
    """Return the name of an entry's set, as kroute tells it to people and the tools take it."""
    return f"{_table_of(entry)} {_NFT_SETS[entry.set]}" if backend() == NFTABLES else _ipset_name(entry)


def flush_sets(node: Runs, *which: AddressSet) -> None:
    """Delete the entries of these sets, of all if none is named. They are at most a few, so it is done at once."""
    if backend() == NFTABLES:
        names = [(table, it) for table in TABLES.values() for it in which or AddressSet]
        node.run("nft", "-f", "-", stdin="".join(f"flush set {table} {_NFT_SETS[it]}\n" for table, it in names))
        return
    for name in node.run("ipset", "list", "-name").split():
        if not which or name in {f"KROUTE-{family}{it}" for family in ("", "6-") for it in which}:
            node.run("ipset", "flush", name)


def add_entries(node: Runs, added: Iterable[SetEntry]) -> None:
    """Add entries to their sets; those that are there stay."""
    _edit(node, "add", added)


def delete_entry(node: Runs, entry: SetEntry) -> None:
    """Delete an entry. Raises CommandError if it is not there."""
    _edit(node, "delete" if backend() == NFTABLES else "del", [entry])


def rules(node: Runs, family: str) -> dict[str, list[str]]:
    """Return the rules of kroute's for "IPv4" or "IPv6", and what leads to them, by table."""
    if backend() == NFTABLES:
        table = TABLES[family]
        return {table: node.run("nft", "-t", "list", "table", *table.split()).splitlines()}
    tool = _tool(family)
    tables = {table: node.run(tool, "-t", table, "-S").splitlines() for table in LEGACY_TABLES}
    return {table: kept for table, lines in tables.items() if (kept := list(filter(_OF_KROUTE.search, lines)))}


def delete_rules(node: Runs, family: str) -> None:
    """Delete kroute's chains, their rules and what leads to them; each table at one moment.

    Between single deletions kroute would begin to repair the table. Raises CommandError if something is not there.
    """
    if backend() == NFTABLES:
        _delete_nft_chains(node, TABLES[family])
        return
    for table, lines in rules(node, family).items():
        jumps = [
            f"-D {line.removeprefix('-A ')}" for line in lines if not line.startswith(("-N KROUTE-", "-A KROUTE-"))
        ]
        chains = [line.removeprefix("-N ") for line in lines if line.startswith("-N ")]
        deletions = [*jumps, *(f"{flag} {chain}" for flag in ("-F", "-X") for chain in chains)]
        restore = "\n".join((f"*{table}", *deletions, "COMMIT\n"))
        node.run(f"{_tool(family)}-restore", "--noflush", stdin=restore)


def flush_rules(node: Runs, family: str) -> None:
    """Flush all rules of NAT, or all of the table, as an administrator does who starts from nothing."""
    if backend() == NFTABLES:
        node.run("nft", "flush", "table", *TABLES[family].split())
    else:
        node.run(_tool(family), "-t", "nat", "-F")


def _tool(family: str) -> str:
    return {"IPv4": "iptables-legacy", "IPv6": "ip6tables-legacy"}[family]


def _delete_nft_chains(node: Runs, table: str) -> None:
    listed = json.loads(node.run("nft", "-j", "list", "table", *table.split()))["nftables"]
    chains = [it["chain"]["name"] for it in listed if "chain" in it]
    commands = [f"{verb} chain {table} {chain}\n" for verb in ("flush", "delete") for chain in chains]
    node.run("nft", "-f", "-", stdin="".join(commands))


def _edit(node: Runs, verb: str, edited: Iterable[SetEntry]) -> None:
    if backend() == NFTABLES:
        lines = [f"{verb} element {_table_of(it)} {_NFT_SETS[it.set]} {{ {_nft_text(it)} }}" for it in edited]
        node.run("nft", "-f", "-", stdin="\n".join([*lines, ""]))
    else:
        lines = [f"{verb} {_ipset_name(it)} {_ipset_text(it.element)}" for it in edited]
        node.run("ipset", "-exist" if verb == "add" else "-quiet", "restore", stdin="\n".join([*lines, ""]))


def _table_of(entry: SetEntry) -> str:
    return TABLES["IPv6" if ":" in str(entry.element[0]) else "IPv4"]


def _nft_text(entry: SetEntry) -> str:
    words = [str(it) for it in entry.element]
    if len(words) > 1:
        words[1] = _NAMES[int(words[1])]
    if entry.set is AddressSet.SOURCE_RANGE:
        network = ip_network(words[-1])
        words[-1:] = [str(network[0]), str(network[-1])]
    return " . ".join(words)


def _nft_entries(node: Runs) -> set[SetEntry]:
    found: set[SetEntry] = set()
    tables = node.run("nft", "list", "tables").splitlines()
    for table in TABLES.values():
        if f"table {table}" not in tables:
            continue
        for item in json.loads(node.run("nft", "-j", "list", "table", *table.split()))["nftables"]:
            if "set" in item:
                which = _OF_NFT[item["set"]["name"]]
                found |= {SetEntry(which, _nft_element(which, it)) for it in item["set"].get("elem", ())}
    return found


def _nft_element(which: AddressSet, listed: Any) -> Element:
    """Turn an element of nft's JSON into that of a plan."""
    parts = listed["concat"] if isinstance(listed, dict) and "concat" in listed else [listed]
    values: list[str | int] = [_nft_value(it) for it in parts]
    if which is AddressSet.SOURCE_RANGE:
        values[-2:] = map(str, summarize_address_range(*map(ip_address, values[-2:])))
    elif SHAPES[which][-1] is ElementPart.NETWORK:
        values[-1] = str(ip_network(str(values[-1])))
    return tuple(values)


def _nft_value(value: Any) -> str | int:
    match value:
        case {"prefix": {"addr": address, "len": length}}:
            return f"{address}/{length}"
        case str() if value in _PROTOCOLS:
            return _PROTOCOLS[value]
        case str() | int():
            return value
    raise ValueError(f"an element that kroute does not write: {value}")


def _ipset_name(entry: SetEntry) -> str:
    return f"KROUTE-{'6-' if ':' in str(entry.element[0]) else ''}{entry.set}"


def _ipset_text(element: Element) -> str:
    address, *port = map(str, element)
    if not port:
        return address
    protocol, number, *second = port
    return ",".join([address, f"{_NAMES[int(protocol)]}:{number}", *second])


def _ipset_entries(node: Runs) -> set[SetEntry]:
    found: set[SetEntry] = set()
    for line in node.run("ipset", "save").splitlines():
        match = re.match(r"add KROUTE-(?:6-)?([A-Z-]+) ([^ ]+)", line)
        if match and match[1] in set(AddressSet):
            which = AddressSet(match[1])
            found.add(SetEntry(which, _ipset_element(which, match[2])))
    return found


def _ipset_element(which: AddressSet, text: str) -> Element:
    address, *port = text.split(",")
    values: list[str | int] = [address]
    if port:
        protocol, _, number = port[0].partition(":")
        values += [_PROTOCOLS[protocol], int(number), *port[1:]]
    if SHAPES[which][-1] is ElementPart.NETWORK:
        values[-1] = str(ip_network(str(values[-1])))
    return tuple(values)
