"""What becomes of a client's first packet on this node, by the way of the data in docs/design.md.

The same judgement is made twice: with what was planned, and with what the kernel has.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from kroute.controllers.masquerade.address_sets import Family
from kroute.controllers.masquerade.filter_rules import filter_rules, output_rules
from kroute.controllers.masquerade.nat_rules import masquerade_rules
from kroute.inspect.packet_trace import Outcome, Packet, Sets, walk
from kroute.kernel.iptables.xtables import TableRules
from kroute.kernel.ipvs.client import RealServerKey
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import VirtualServerKey
from kroute.settings import Settings


class Fate(StrEnum):
    """What becomes of a new connection."""

    SERVED = "served"
    REFUSED = "refused"
    """The client is told so at once."""
    DROPPED = "dropped"
    """The client waits in vain."""
    HOST = "left to the node"
    """No Service's: the node itself answers, if something listens there."""
    PASSED_ON = "passed on"
    """Not for this node: routed like any other packet."""


class Client(msgspec.Struct, frozen=True):
    """Who connects. Without `interface` it is a process of this node."""

    name: str
    address: str
    interface: str


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a client's new connection, and why; `masquerade` tells of the source that real servers see."""

    client: Client
    fate: Fate
    why: str
    masquerade: str


class World(NamedTuple):
    """All that the judgement depends on, beside the rules.

    `real_servers` has the weight of each; None where there is no virtual server. `is_local`: whether packets to the
    address are for this node.
    """

    is_local: bool
    sets: Sets
    real_servers: Mapping[RealServerKey, int] | None

    @property
    def serving(self) -> list[RealServerKey]:
        """The real servers that take new connections."""
        return sorted(server for server, weight in (self.real_servers or {}).items() if weight > 0)


class NodeRuleTables(NamedTuple):
    """The rules of one family."""

    nat: TableRules
    mangle: TableRules
    filter: TableRules


def rules_of(settings: Settings, family: Family, node: NodeFacts, *, random_fully: bool = False) -> NodeRuleTables:
    """The rules that an agent writes."""
    nat = masquerade_rules(settings, family, node, random_fully=random_fully)
    return NodeRuleTables(nat, output_rules(family), filter_rules(settings, family))


def judge(key: VirtualServerKey, client: Client, world: World, rules: NodeRuleTables) -> Verdict:
    """Send the client's first packet on its way."""
    packet = Packet(int(key.protocol), client.address, key.address, key.port, client.interface)
    fate, why = _fate(packet, world, rules)
    masquerade = _masquerade(packet, world, rules) if fate is Fate.SERVED else ""
    return Verdict(client, fate, why, masquerade)


def _fate(packet: Packet, world: World, rules: NodeRuleTables) -> tuple[Fate, str]:
    """IPVS takes packets behind INPUT, those of this node's processes as they leave them; the rest comes in by lo."""
    if not world.is_local:
        return Fate.PASSED_ON, "the address is not this node's, and no local route leads to it"
    is_own = not packet.in_interface
    table, hook = (rules.mangle, "OUTPUT") if is_own else (rules.filter, "INPUT")
    outcome = walk(table, hook, packet, world.sets)
    if not outcome.target and is_own and world.real_servers is None:
        outcome = walk(rules.filter, "INPUT", packet._replace(in_interface="lo"), world.sets)
    if outcome.target:
        return _ended(outcome)
    if world.serving:
        return Fate.SERVED, outcome.why or "no rule is against it"
    if world.real_servers is not None:
        return Fate.REFUSED, "its virtual server has no real server that takes new connections"
    return Fate.HOST, "no virtual server and no rule is for it"


def _ended(outcome: Outcome) -> tuple[Fate, str]:
    """The rule that led to the end says why, not the one that carried it out."""
    *_, why = [text for text in outcome.met if text != "refused at once"]
    if outcome.target == "REJECT":
        return Fate.REFUSED, f"{why} ({outcome.detail})"
    return Fate.DROPPED, why


def _masquerade(packet: Packet, world: World, rules: NodeRuleTables) -> str:
    """The packet is marked by what the client addressed; behind IPVS it leaves with its source or another one."""
    before = walk(rules.nat, "PREROUTING" if packet.in_interface else "OUTPUT", packet, world.sets)
    said = {server: _source(packet, server, before, world, rules) for server in world.serving}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"to {address}:{port}: {text}" for (address, port), text in said.items())


def _source(packet: Packet, server: RealServerKey, before: Outcome, world: World, rules: NodeRuleTables) -> str:
    address, port = server
    leaving = packet._replace(destination=address, port=port, mark=before.mark)
    outcome = walk(rules.nat, "POSTROUTING", leaving, world.sets)
    why = f" ({before.met[0]})" if before.met else f" ({outcome.met[0]})" if outcome.target else ""
    if not outcome.target:
        return f"the client's address is kept{why}"
    return f"masqueraded{why}" if outcome.target == "MASQUERADE" else f"source {outcome.detail}{why}"
