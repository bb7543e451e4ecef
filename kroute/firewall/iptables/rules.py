"""All rules of one family, and what they do with a packet."""

from collections.abc import Sequence
from typing import NamedTuple

from kroute.firewall.iptables.filter_rules import filter_rules, output_rules
from kroute.firewall.iptables.nat_rules import masquerade_rules
from kroute.firewall.iptables.packet_trace import TraceResult, trace
from kroute.firewall.packets import Admission, Packet, Ruling, SourceChoice
from kroute.firewall.sets import Sets
from kroute.kernel.iptables.xtables import TableRules
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.settings import Settings


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
        """As the protocol says: IPVS is after INPUT, or after OUTPUT for this node's packets; others return on lo."""
        is_own = not packet.in_interface
        table, hook = (self.mangle, "OUTPUT") if is_own else (self.filter, "INPUT")
        outcome = trace(table, hook, packet, sets)
        if not outcome.target and is_own and not has_virtual_server:
            outcome = trace(self.filter, "INPUT", packet._replace(in_interface="lo"), sets)
        if outcome.target in {"", "ACCEPT"}:
            return Admission(Ruling.PASSED, outcome.why)
        *_, why = [text for text in outcome.met if text != "refused at once"]  # the rule before it says why
        if outcome.target == "REJECT":
            return Admission(Ruling.REFUSED, f"{why} ({outcome.detail})")
        return Admission(Ruling.DROPPED, why)

    def sources(self, packet: Packet, real_servers: Sequence[tuple[str, int]], sets: Sets) -> list[SourceChoice]:
        """As the protocol says: nat marks packets by the client's destination, and masquerades them after IPVS."""
        before = trace(self.nat, "PREROUTING" if packet.in_interface else "OUTPUT", packet, sets)
        leaving = packet._replace(mark=before.mark)
        return [self._source_at(leaving._replace(destination=it[0], port=it[1]), before, sets) for it in real_servers]

    def _source_at(self, leaving: Packet, before: TraceResult, sets: Sets) -> SourceChoice:
        outcome = trace(self.nat, "POSTROUTING", leaving, sets)
        why = before.met[0] if before.met else outcome.met[0] if outcome.target else ""
        return SourceChoice(is_kept=not outcome.target, address=outcome.detail, why=why)


def family_rules(settings: Settings, family: Family, node: NodeFacts, *, random_fully: bool = False) -> FamilyRules:
    """The rules for a node with these facts. `random_fully`: whether the kernel can choose source ports at random."""
    nat = masquerade_rules(settings, family, node, random_fully=random_fully)
    return FamilyRules(family, nat, output_rules(family), filter_rules(settings, family))
