"""All rules of one family, and what they do with a packet."""

from collections.abc import Sequence

import msgspec

from kroute.firewall.nftables.chains import ChainRules, trace
from kroute.firewall.nftables.filter_rules import filter_chains
from kroute.firewall.nftables.nat_rules import nat_chains
from kroute.firewall.packet_trace import Hook, TraceResult, admission, sources
from kroute.firewall.packets import Admission, Packet, SourceChoice
from kroute.firewall.sets import Sets
from kroute.kernel.nftables.objects import Chain, Rule
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.settings import Settings


class FamilyRules(msgspec.Struct, frozen=True):
    """The chains of one family; each is before those that jump to it. Implements the protocol `Rules`."""

    family: Family
    chains: Sequence[ChainRules]

    def admission(self, packet: Packet, sets: Sets, *, has_virtual_server: bool) -> Admission:
        return admission(self._trace, packet, sets, has_virtual_server=has_virtual_server)

    def sources(self, packet: Packet, real_servers: Sequence[tuple[str, int]], sets: Sets) -> list[SourceChoice]:
        return sources(self._trace, packet, real_servers, sets)

    @property
    def kernel_chains(self) -> dict[str, Chain]:
        """The chains as the kernel has them, by name."""
        return {it.name: it.chain for it in self.chains}

    @property
    def kernel_rules(self) -> list[Rule]:
        """The rules of all chains as the kernel has them."""
        return [rule for it in self.chains for rule in it.kernel_rules]

    def _trace(self, hook: Hook, packet: Packet, sets: Sets) -> TraceResult:
        return trace(self.chains, hook, packet, sets)


def family_rules(settings: Settings, family: Family, node: NodeFacts) -> FamilyRules:
    """The rules for a node with these facts."""
    return FamilyRules(family, [*filter_chains(settings, family), *nat_chains(settings, family, node)])
