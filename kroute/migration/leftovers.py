"""Recognise what another proxy left on a node, in a scan of the kernel: pure functions.

A virtual server does not say who made it. It is the other proxy's if its address is on that proxy's link, or its port
is in one of that proxy's sets. kube-router's sets name a node port at the node's primary address only, which is IPv4 on
a node with both families; at the node's other addresses the port is its as well. A node port that no set names is the
other proxy's if a Service has that port, and what the virtual server forwards to is among that Service's endpoints.
Every other virtual server is foreign and is only listed.

Of kube-router's routing, its tunnels and routes have a name and an origin of their own; three rules that accept what is
forwarded have comments. The rule that masquerades what pods send names kube-router's sets; in nf_tables it has their
numbers only, and is recognised by its form.

In networks that are excluded from a clean-up anybody's virtual servers may be. There the address on the link says
nothing, nor do kube-router's sets, which name every virtual server of the kernel.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from ipaddress import ip_network
from typing import ClassVar, NamedTuple

import msgspec

from kroute.checks.other_proxies import (
    DSR_PRIORITY,
    DSR_TABLE,
    EXTERNAL_IP_PRIORITY,
    EXTERNAL_IP_TABLE,
    OTHER_PROXIES,
    OVERLAY_TABLE,
    ROUTE_PROTOCOL,
    OtherProxy,
)
from kroute.kernel.ipset import Element
from kroute.kernel.iptables.tools import VARIANTS, SavedRule, SavedTable
from kroute.kernel.ipvs.objects import VirtualServerKey as KernelKey
from kroute.kernel.net.policy_routing import PolicyRule, TableRoute
from kroute.kernel.nftables.objects import Table
from kroute.kernel.pods.pod_network import RT_TABLE_MAIN
from kroute.model.addresses import canonical
from kroute.model.document import Document
from kroute.model.objects import Applied, Change, EndpointSlice, ObjectKey, Service
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.reconcile.comparison.virtual_servers import planned_key
from kroute.reconcile.ledger import Exclusion
from kroute.settings import PortRange

_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193
_MARK_BITS = 0x3FFF
_MARK_ATTEMPTS = 16
_POD_EGRESS = re.compile(
    r"POSTROUTING -m set --match-set (#\d+|(?:inet6:)?kube-router-pod-subnets) src"
    r" -m set ! --match-set \1 dst -m set ! --match-set \S+ dst -j MASQUERADE(?: --random-fully)?"
)
"""kube-router's rule that masquerades what pods send to the outside; `#` and a number is a set in nf_tables."""
_FORWARDING = frozenset(
    {
        "allow outbound traffic from pods",
        "allow inbound traffic to pods",
        "allow outbound node port traffic on node interface with which node ip is associated",
    }
)
"""The comments of kube-router's rules that accept what is forwarded."""


class TableLeftovers(msgspec.Struct, frozen=True):
    """The other proxy's chains and rules in one table.

    `rules` are the proxy's rules in chains of others, as `-A` prints them: jumps, and rules in the built-in chains. Of
    nf_tables, matches that do not matter here are without their options.
    `kept` are the proxy's chains that foreign rules jump to, and the chains that those need.
    """

    variant: str
    table: str
    chains: tuple[str, ...]
    rules: tuple[str, ...]
    kept: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()


class ProxyPart(NamedTuple):
    """The same of a table of any variant, with the rules themselves."""

    chains: tuple[str, ...] = ()
    rules: tuple[SavedRule, ...] = ()
    kept: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()


def part_of(proxy: OtherProxy, table: SavedTable) -> ProxyPart | None:
    """The proxy's part of the table, or None."""
    others = set(table.chains)
    theirs = set(filter(proxy.chains.fullmatch, others))
    others -= theirs
    builtin = [rule for rule in table.rules if rule.chain not in others and rule.chain not in theirs]
    kept = _needed_by(table, table.targets_of(others) & theirs, theirs)
    marking = _marking_rules(builtin) if proxy.has_dsr and table.name == "mangle" else {}
    ours = [rule for rule in builtin if (rule.target in theirs and rule.target not in kept) or rule.text in marking]
    if proxy.has_dsr:
        ours += [rule for rule in builtin if _is_snat_of_ipvs(table.name, rule)]
        ours += _clamping_rules(builtin, {rule.after("-d") for rule in builtin if rule.text in marking})
    if proxy.connects_pods:
        ours += [rule for rule in builtin if _is_of_routing(table.name, rule)]
    if not theirs and not ours:
        return None
    chosen, gone = set(ours), theirs - kept
    return ProxyPart(
        chains=tuple(chain for chain in table.chains if chain in gone),
        rules=tuple(rule for rule in builtin if rule in chosen),
        kept=tuple(sorted(kept)),
        marks=tuple(sorted(set(marking.values()))),
    )


def _needed_by(table: SavedTable, chains: Set[str], theirs: Set[str]) -> set[str]:
    """These chains, and all chains of the proxy that their rules lead to."""
    needed, found = set(chains), set(chains)
    while found:
        found = table.targets_of(found) & theirs - needed
        needed |= found
    return needed


def _is_snat_of_ipvs(table: str, rule: SavedRule) -> bool:
    """Whether this is kube-router's masquerading rule: in POSTROUTING, and recognised by its empty comment."""
    return (
        (table, rule.chain, rule.target) == ("nat", "POSTROUTING", "SNAT")
        and (rule.after("--vdir"), rule.after("--vmethod")) == ("ORIGINAL", "MASQ")
        and "--comment" in rule.words
        and rule.after("--comment") == ""
    )


def _is_of_routing(table: str, rule: SavedRule) -> bool:
    """Whether this is one of the rules of kube-router's routing."""
    if (table, rule.chain, rule.target) == ("filter", "FORWARD", "ACCEPT"):
        return rule.after("--comment") in _FORWARDING
    return table == "nat" and _POD_EGRESS.fullmatch(rule.text) is not None


def _marking_rules(builtin: Iterable[SavedRule]) -> Mapping[str, int]:
    """The rules that mark packets for direct server return, with the marks.

    A mark's hash shows that it is kube-router's.
    """
    found = {}
    for rule in builtin:
        address, protocol, port = rule.after("-d"), rule.after("-p"), rule.after("--dport")
        if rule.target != "MARK" or not (address and protocol and port):
            continue
        mark = int((rule.after("--set-xmark") or "0").partition("/")[0], 0)
        if mark in dsr_marks(str(ip_network(address).network_address), protocol, port):
            found[rule.text] = mark
    return found


def _clamping_rules(builtin: Iterable[SavedRule], addresses: set[str]) -> list[SavedRule]:
    """The rules that limit the MSS of connections to or from these addresses, to leave room for the tunnel's header."""
    clamping = [rule for rule in builtin if rule.target == "TCPMSS"]
    return [rule for rule in clamping if (rule.after("-s") or rule.after("-d")) in addresses]


def dsr_marks(address: str, protocol: str, port: str) -> set[int]:
    """The marks that kube-router may give an external IP's port: FNV-1a of `IP-PROTOCOL-PORT`, or with a counter."""
    names = [f"{address}-{protocol}-{port}"]
    names += [f"{names[0]}-{attempt}" for attempt in range(1, _MARK_ATTEMPTS)]
    return {_fnv1a(name.encode()) & _MARK_BITS for name in names}


def _fnv1a(text: bytes) -> int:
    value = _FNV_OFFSET
    for octet in text:
        value = (value ^ octet) * _FNV_PRIME & 0xFFFFFFFF
    return value


AllocatedNodePorts = Mapping[tuple[Protocol, int], Set[str]]
"""The addresses of all endpoints, whatever their conditions, of the Service that has this protocol and node port."""


def allocated_node_ports(changes: Iterable[Change]) -> AllocatedNodePorts:
    """The node ports of these Services, with the endpoints of these EndpointSlices."""
    items = [change.item for change in changes if isinstance(change, Applied)]
    endpoints: dict[ObjectKey | None, set[str]] = defaultdict(set)
    for item in items:
        if isinstance(item, EndpointSlice):
            written = [endpoint.addresses[0] for endpoint in item.endpoints or () if endpoint.addresses]
            endpoints[item.service_key].update(filter(None, map(canonical, written)))
    services = [item for item in items if isinstance(item, Service)]
    ports = [(service.key, port) for service in services for port in service.spec.ports or () if port.node_port]
    known = [(key, port) for key, port in ports if port.protocol in Protocol.__members__]
    return {(Protocol[port.protocol], port.node_port): endpoints[key] for key, port in known}


def serves(allocated: AllocatedNodePorts, key: VirtualServerKey, real_servers: Set[str]) -> bool:
    """Whether a virtual server on an address of the node serves the Service that has its port.

    One endpoint in common is enough: the others may be gone since the virtual server was last written. A virtual server
    without real servers serves nobody else either.
    """
    endpoints = allocated.get((key.protocol, key.port))
    return endpoints is not None and (not real_servers or not endpoints.isdisjoint(real_servers))


NEEDS_TOOLS = "it takes the iptables tools and the capability NET_RAW (docs/deploy.md)"


class NodeScan(msgspec.Struct, frozen=True):
    """All objects in the kernel that a proxy may have made, and what kroute's ledger names.

    `tables` are the tables of iptables by variant. `unread` are legacy tables that could not be read, such as "IPv4
    legacy nat", or the variant alone if not even the names of its tables are known. `fixed` are the variants whose
    tables this process cannot change; of these `tables` has the names of the chains only. `sets` are the sets with the
    proxy's names, with their elements if these are ports. `virtual_servers` are with the addresses of their real
    servers. `link_addresses` are those on its link, None without such a link. `elsewhere` are the addresses on all
    other interfaces. `nft_tables` are those of nf_tables with the proxy's names. `tunnels` are links with the names of
    kube-router's, `cni_files` its files by which container runtimes connect pods.
    """

    tables: Mapping[str, Sequence[SavedTable]]
    sets: Mapping[str, Set[Element]]
    virtual_servers: Mapping[KernelKey, Set[str]]
    marks: tuple[tuple[int, int], ...]
    link_addresses: Set[str] | None
    elsewhere: Set[str]
    policy_rules: tuple[PolicyRule, ...]
    table_routes: tuple[TableRoute, ...]
    sysctls: Mapping[str, str | None]
    our_virtual_servers: Set[VirtualServerKey]
    our_links: Set[str]
    nft_tables: tuple[Table, ...] = ()
    unread: tuple[str, ...] = ()
    fixed: Set[str] = frozenset()
    tunnels: tuple[str, ...] = ()
    cni_files: tuple[str, ...] = ()


class Leftovers(msgspec.Struct, frozen=True):
    """The objects of the other proxy.

    `to_adopt` are its virtual servers that are not in kroute's ledger, `adopted` those that are. `others` are virtual
    servers of neither proxy. `in_doubt` are those of `others` that may be the other proxy's, if a Service has their
    port as its node port. `only_there` are addresses of adopted virtual servers that are on no other interface.
    `unseen` are legacy tables that exist and could not be read; `fixed` are those of `tables` that this process cannot
    change, both by names such as "IPv4 legacy nat". `no_services` is why the Services could not be read, or
    "" if they were read or nothing was in doubt. `with_firewall`, `with_routing`: what the proxy has of network
    policies, and of the pods' network, is among them. `stays` says, in one line each, why that is not so though kroute
    is to do the same.
    """

    proxy: str
    link: str | None
    addresses: tuple[str, ...]
    only_there: tuple[str, ...]
    to_adopt: tuple[VirtualServerKey, ...]
    adopted: tuple[VirtualServerKey, ...]
    others: tuple[VirtualServerKey, ...]
    in_doubt: tuple[VirtualServerKey, ...]
    tables: tuple[TableLeftovers, ...]
    sets: tuple[str, ...]
    marks: tuple[tuple[int, int], ...]
    policy_rules: tuple[PolicyRule, ...]
    routes: tuple[TableRoute, ...]
    sysctls: Mapping[str, str]
    unseen: tuple[str, ...]
    no_services: str = ""
    nft_tables: tuple[Table, ...] = ()
    fixed: tuple[str, ...] = ()
    with_firewall: bool = False
    with_routing: bool = False
    tunnels: tuple[str, ...] = ()
    cni_files: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()

    @property
    def whose(self) -> OtherProxy:
        """The proxy, with its firewall and its routing if these are meant."""
        return OTHER_PROXIES[self.proxy].with_parts(firewall=self.with_firewall, routing=self.with_routing)

    @property
    def warnings(self) -> list[str]:
        """What could not be read, and what that means; one line each."""
        found = []
        unseen, fixed = ", ".join(self.unseen), ", ".join(self.fixed)
        if unseen:
            found.append(f"legacy iptables tables exist on this node and cannot be read: {unseen}; {NEEDS_TOOLS}")
        if fixed:
            found.append(f"this process cannot remove {self.proxy}'s chains from {fixed}: {NEEDS_TOOLS}")
        if self.no_services and self.in_doubt:
            found.append(
                f"{len(self.in_doubt)} virtual servers on node ports are left alone ({self.in_doubt[0]}), since the "
                f"Services that may have these ports cannot be read: {self.no_services}"
            )
        return [*found, *self.stays]

    @property
    def may_translate_first(self) -> bool:
        """Whether rules that translate packets before IPVS sees them are here and cannot be removed by this process.

        They are in a legacy table nat: kube-proxy's of the mode iptables. One that cannot be read may have them.
        """
        translating = OTHER_PROXIES[self.proxy].translating
        if translating is None:
            return False
        fixed = [table for table in self.tables if table.table == "nat" and f"{table.variant} nat" in self.fixed]
        chains = [chain for table in fixed for chain in table.chains]
        unseen = any(name.endswith((" legacy", " nat")) for name in self.unseen)
        return unseen or any(map(translating.fullmatch, chains))

    @property
    def are_removed(self) -> bool:
        """Whether nothing is left that a take-over removes or adopts. Sysctls stay, kroute needs most of them."""
        rules = any(table.chains or table.rules for table in self.tables) or self.nft_tables or self.policy_rules
        links = self.link or self.tunnels
        return not (rules or links or self.to_adopt or self.sets or self.marks or self.routes or self.cni_files)

    def as_document(self) -> "LeftoverList":
        """The leftovers for programs, with text in place of the kernel's numbers."""
        fields = {name: getattr(self, name) for name in LeftoverList.__struct_fields__}
        texts = {name: list(map(str, value)) for name, value in fields.items() if isinstance(value, tuple)}
        exact = {"tables": list(self.tables), "marks": [mark for _, mark in self.marks], "sysctls": dict(self.sysctls)}
        return LeftoverList(**(fields | texts | exact))


class LeftoverList(Document):
    """What another service proxy left on this node; `Leftovers` says what each field means."""

    kind: ClassVar[str] = "LeftoverList"

    proxy: str
    link: str | None
    addresses: list[str]
    only_there: list[str]
    to_adopt: list[str]
    adopted: list[str]
    others: list[str]
    in_doubt: list[str]
    tables: list[TableLeftovers]
    nft_tables: list[str]
    sets: list[str]
    marks: list[int]
    policy_rules: list[str]
    routes: list[str]
    tunnels: list[str]
    cni_files: list[str]
    sysctls: dict[str, str]
    warnings: list[str]

    def names(self) -> Iterator[str]:
        """What a take-over adopts or removes."""
        for kind, things in (
            ("link", [self.link] if self.link else []),
            ("virtual server", self.to_adopt),
            ("nft table", self.nft_tables),
            ("set", self.sets),
            ("mark", self.marks),
            ("policy rule", self.policy_rules),
            ("route", self.routes),
            ("tunnel", self.tunnels),
            ("file", self.cni_files),
        ):
            yield from (f"{kind} {thing}" for thing in things)
        for table in self.tables:
            yield from (f"chain {table.table} {chain}" for chain in table.chains)


def recognise(
    proxy: OtherProxy,
    node: NodeScan,
    node_ports: PortRange,
    allocated: AllocatedNodePorts | None = None,
    exclusion: Exclusion | None = None,
) -> Leftovers:
    """Find the proxy's objects on the node.

    `node_ports`: the range in which a port on a node address may be a node port. `allocated`: the node ports that
    Services have, or None if they are not known. `exclusion`: the networks that are excluded from a clean-up.
    """
    excluded = exclusion or Exclusion(())
    ours, on_link = node.our_virtual_servers, node.link_addresses or set()
    tables = tuple(
        TableLeftovers(variant, table.name, part.chains, tuple(rule.text for rule in part.rules), part.kept, part.marks)
        for variant in map(str, VARIANTS)
        for table in node.tables.get(variant, ())
        if (part := part_of(proxy, table)) is not None
    )
    certain = {planned_key(key) for key in node.virtual_servers if _is_theirs(proxy, node, key, node_ports, excluded)}
    everything = {planned_key(key) for key in node.virtual_servers}
    in_doubt = {key for key in everything - certain - ours if _may_be_a_node_port(node, key, node_ports)}
    theirs = certain | {key for key in in_doubt if serves(allocated or {}, key, node.virtual_servers[key])}
    adopted = theirs & ours
    marks = {mark for table in tables for mark in table.marks}
    link = proxy.link if node.link_addresses is not None and proxy.link not in node.our_links else None
    only_there = {key.address for key in adopted} & on_link - node.elsewhere if link else set()
    return Leftovers(
        proxy.name,
        link,
        addresses=tuple(sorted(on_link)) if link else (),
        only_there=tuple(sorted(only_there)),
        to_adopt=tuple(sorted(theirs - ours)),
        adopted=tuple(sorted(adopted)),
        others=tuple(sorted(everything - theirs - ours)),
        in_doubt=tuple(sorted(in_doubt - theirs)),
        tables=tables,
        sets=tuple(sorted(filter(proxy.has_set, node.sets))),
        marks=tuple(each for each in node.marks if each[1] in marks),
        policy_rules=tuple(rule for rule in node.policy_rules if _leads_to_its_table(proxy, rule)),
        routes=tuple(route for route in node.table_routes if _is_its_route(proxy, route)),
        sysctls={name: value for name, value in proxy.sysctls.items() if node.sysctls.get(name) == value},
        unseen=node.unread,
        nft_tables=tuple(table for table in node.nft_tables if table.name in proxy.nft_tables),
        fixed=tuple(f"{table.variant} {table.table}" for table in tables if table.variant in node.fixed),
        tunnels=node.tunnels if proxy.connects_pods else (),
        cni_files=node.cni_files if proxy.connects_pods else (),
    )


def _is_theirs(proxy: OtherProxy, node: NodeScan, key: KernelKey, node_ports: PortRange, exclusion: Exclusion) -> bool:
    protocol, address, port = key
    if exclusion.covers(address) and proxy.lists_every_virtual_server:
        return False
    if not exclusion.covers(address) and address in (node.link_addresses or ()) and proxy.link not in node.our_links:
        return True
    listed = _elements(node, proxy.port_sets)
    if not proxy.lists_every_virtual_server and any((address, protocol, port) in elements for elements in listed):
        return True
    if not _may_be_a_node_port(node, key, node_ports):
        return False
    if proxy.lists_every_virtual_server:
        return any((own, protocol, port) in elements for own in node.elsewhere for elements in listed)
    sets = [name for name, ports_of in proxy.node_port_sets.items() if ports_of == (protocol, ":" in address)]
    return any((port,) in elements for elements in _elements(node, sets))


def _may_be_a_node_port(node: NodeScan, key: KernelKey, node_ports: PortRange) -> bool:
    _, address, port = key
    return address in node.elsewhere and node_ports.first <= port <= node_ports.last


def _elements(node: NodeScan, names: Iterable[str]) -> list[Set[Element]]:
    return [node.sets[name] for name in names if name in node.sets]


def _leads_to_its_table(proxy: OtherProxy, rule: PolicyRule) -> bool:
    of_dsr = {(DSR_PRIORITY, DSR_TABLE), (EXTERNAL_IP_PRIORITY, EXTERNAL_IP_TABLE)}
    is_of_dsr = proxy.has_dsr and (rule.priority, rule.table) in of_dsr
    return is_of_dsr or (proxy.connects_pods and rule.table == OVERLAY_TABLE)


def _is_its_route(proxy: OtherProxy, route: TableRoute) -> bool:
    if proxy.connects_pods and route.table in {RT_TABLE_MAIN, OVERLAY_TABLE}:
        return route.table == OVERLAY_TABLE or route.protocol == ROUTE_PROTOCOL
    if not proxy.has_dsr:
        return False
    if route.table == DSR_TABLE:
        return route.is_local and (route.destination, route.interface) == ("default", "lo")
    return route.table == EXTERNAL_IP_TABLE and route.interface == "kube-bridge"
