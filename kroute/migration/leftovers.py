"""Recognise what another proxy left on a node, in a scan of the kernel: pure functions.

A virtual server does not say who made it. It is the other proxy's if its address is on that proxy's link, or its port
is in one of that proxy's sets. Every other virtual server is foreign and is only listed.
"""

from collections.abc import Iterable, Mapping, Set

import msgspec

from kroute.checks.known_proxies import (
    DSR_PRIORITY,
    DSR_TABLE,
    EXTERNAL_IP_PRIORITY,
    EXTERNAL_IP_TABLE,
    OtherProxy,
)
from kroute.comparison.virtual_servers import planned_key
from kroute.kernel.ipset import Element
from kroute.kernel.iptables.tools import VARIANTS
from kroute.kernel.ipvs.client import VirtualServerKey as KernelKey
from kroute.kernel.net.policy_routing import PolicyRule, TableRoute
from kroute.migration.saved_rules import TableLeftovers, leftovers_in, parse_saved
from kroute.model.plan import VirtualServerKey
from kroute.settings import PortRange


class NodeScan(msgspec.Struct, frozen=True):
    """All objects in the kernel that a proxy may have made, and what kroute's ledger names.

    `saved` are iptables-save's outputs by variant, None if the tool is missing. `sets` are the sets with the proxy's
    names, with their elements. `link_addresses` are those on its link, None without such a link. `elsewhere` are the
    addresses on all other interfaces.
    """

    saved: Mapping[str, str | None]
    sets: Mapping[str, Set[Element]]
    virtual_servers: Set[KernelKey]
    marks: tuple[tuple[int, int], ...]
    link_addresses: Set[str] | None
    elsewhere: Set[str]
    policy_rules: tuple[PolicyRule, ...]
    table_routes: tuple[TableRoute, ...]
    sysctls: Mapping[str, str | None]
    our_virtual_servers: Set[VirtualServerKey]
    our_links: Set[str]


class Leftovers(msgspec.Struct, frozen=True):
    """The objects of the other proxy.

    `to_adopt` are its virtual servers that are not in kroute's ledger, `adopted` those that are. `others` are virtual
    servers of neither proxy. `only_there` are addresses of adopted virtual servers that are on no other interface.
    `unseen` are variants of iptables that could not be read.
    """

    proxy: str
    link: str | None
    addresses: tuple[str, ...]
    only_there: tuple[str, ...]
    to_adopt: tuple[VirtualServerKey, ...]
    adopted: tuple[VirtualServerKey, ...]
    others: tuple[VirtualServerKey, ...]
    tables: tuple[TableLeftovers, ...]
    sets: tuple[str, ...]
    marks: tuple[tuple[int, int], ...]
    policy_rules: tuple[PolicyRule, ...]
    routes: tuple[TableRoute, ...]
    sysctls: Mapping[str, str]
    unseen: tuple[str, ...]

    @property
    def are_removed(self) -> bool:
        """Whether nothing is left that a take-over removes or adopts. Sysctls stay, kroute needs most of them."""
        tables = any(table.chains or table.rules for table in self.tables)
        return not (tables or self.link or self.to_adopt or self.sets or self.marks or self.policy_rules or self.routes)

    def as_plain(self) -> dict[str, object]:
        """The leftovers for JSON, with text in place of the kernel's numbers."""
        plain = msgspec.structs.asdict(self)
        servers = {name: [str(key) for key in plain[name]] for name in ("to_adopt", "adopted", "others")}
        things = {name: [str(thing) for thing in plain[name]] for name in ("policy_rules", "routes")}
        return {**plain, **servers, **things, "marks": [mark for _, mark in self.marks]}


def recognise(proxy: OtherProxy, node: NodeScan, node_ports: PortRange) -> Leftovers:
    """Find the proxy's objects on the node.

    `node_ports`: the range in which a port on a node address may be a node port.
    """
    tables = tuple(
        found
        for variant in map(str, VARIANTS)
        for table in parse_saved(node.saved.get(variant) or "")
        if (found := leftovers_in(proxy, variant, table)) is not None
    )
    theirs = {planned_key(key) for key in node.virtual_servers if _is_theirs(proxy, node, key, node_ports)}
    adopted = theirs & node.our_virtual_servers
    everything = {planned_key(key) for key in node.virtual_servers}
    marks = {mark for table in tables for mark in table.marks}
    link = proxy.link if node.link_addresses is not None and proxy.link not in node.our_links else None
    return Leftovers(
        proxy.name,
        link,
        addresses=tuple(sorted(node.link_addresses or ())) if link else (),
        only_there=tuple(sorted({it.address for it in adopted} & (node.link_addresses or set()) - node.elsewhere))
        if link
        else (),
        to_adopt=tuple(sorted(theirs - node.our_virtual_servers)),
        adopted=tuple(sorted(adopted)),
        others=tuple(sorted(everything - theirs - node.our_virtual_servers)),
        tables=tables,
        sets=tuple(sorted(proxy.sets & node.sets.keys())),
        marks=tuple(each for each in node.marks if each[1] in marks),
        policy_rules=tuple(rule for rule in node.policy_rules if proxy.has_dsr and _leads_to_its_table(rule)),
        routes=tuple(route for route in node.table_routes if proxy.has_dsr and _is_in_its_table(route)),
        sysctls={name: value for name, value in proxy.sysctls.items() if node.sysctls.get(name) == value},
        unseen=tuple(variant for variant in map(str, VARIANTS) if node.saved.get(variant) is None),
    )


def _is_theirs(proxy: OtherProxy, node: NodeScan, key: KernelKey, node_ports: PortRange) -> bool:
    protocol, address, port = key
    if address in (node.link_addresses or ()) and proxy.link not in node.our_links:
        return True
    is_listed = any((address, protocol, port) in elements for elements in _elements(node, proxy.port_sets))
    if proxy.lists_every_virtual_server:
        return is_listed and address in node.elsewhere and node_ports.first <= port <= node_ports.last
    node_port_sets = [name for name, it in proxy.node_port_sets.items() if it == (protocol, ":" in address)]
    return is_listed or (
        address in node.elsewhere and any((port,) in elements for elements in _elements(node, node_port_sets))
    )


def _elements(node: NodeScan, names: Iterable[str]) -> list[Set[Element]]:
    return [node.sets[name] for name in names if name in node.sets]


def _leads_to_its_table(rule: PolicyRule) -> bool:
    return (rule.priority, rule.table) in {
        (DSR_PRIORITY, DSR_TABLE),
        (EXTERNAL_IP_PRIORITY, EXTERNAL_IP_TABLE),
    }


def _is_in_its_table(route: TableRoute) -> bool:
    if route.table == DSR_TABLE:
        return route.is_local and (route.destination, route.interface) == ("default", "lo")
    return route.table == EXTERNAL_IP_TABLE and route.interface == "kube-bridge"
