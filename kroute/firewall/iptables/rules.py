"""All rules of one family, and what they do with a packet."""

from collections.abc import Sequence
from typing import NamedTuple

from kroute.firewall.iptables.filter_rules import filter_rules, mangle_rules
from kroute.firewall.iptables.nat_rules import masquerade_rules
from kroute.firewall.iptables.packet_trace import trace
from kroute.firewall.packet_trace import Hook, TraceResult, admission, sources
from kroute.firewall.packets import Admission, Packet, SourceChoice
from kroute.firewall.sets import Sets
from kroute.kernel.iptables.xtables import TableRules
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.settings import Settings

_CHAINS = {
    Hook.OUTPUT: ("mangle", "OUTPUT"),
    Hook.INPUT: ("filter", "INPUT"),
    Hook.NAT_PREROUTING: ("nat", "PREROUTING"),
    Hook.NAT_OUTPUT: ("nat", "OUTPUT"),
    Hook.NAT_POSTROUTING: ("nat", "POSTROUTING"),
}
"""The table and the built-in chain of each hook."""


class FamilyRules(NamedTuple):
    """The rules of one family by table, in the order in which they are written. Implements the protocol `Rules`."""

    family: Family
    nat: TableRules
    mangle: TableRules
    filter: TableRules

    @property
    def tables(self) -> tuple[TableRules, ...]:
        return self.nat, self.mangle, self.filter

    def of(self, table: str) -> TableRules:
        return next(it for it in self.tables if it.table == table)

    def admission(self, packet: Packet, sets: Sets, *, has_virtual_server: bool) -> Admission:
        return admission(self._trace, packet, sets, has_virtual_server=has_virtual_server)

    def sources(self, packet: Packet, real_servers: Sequence[tuple[str, int]], sets: Sets) -> list[SourceChoice]:
        return sources(self._trace, packet, real_servers, sets)

    def _trace(self, hook: Hook, packet: Packet, sets: Sets) -> TraceResult:
        table, chain = _CHAINS[hook]
        return trace(self.of(table), chain, packet, sets)


def family_rules(settings: Settings, family: Family, node: NodeFacts, *, random_fully: bool = False) -> FamilyRules:
    """The rules for a node with these facts. `random_fully`: whether the kernel can choose source ports at random."""
    nat = masquerade_rules(settings, family, node, random_fully=random_fully)
    return FamilyRules(family, nat, mangle_rules(settings, family), filter_rules(settings, family))
