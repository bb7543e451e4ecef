"""What becomes of a client's first packet on this node, by the way of the data in docs/design.md.

The same judgement is made twice: with what was planned, and with what the kernel has.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from kroute.firewall.packets import Packet, Rules, Ruling, SourceChoice
from kroute.firewall.sets import Sets
from kroute.kernel.ipvs.client import RealServerKey
from kroute.model.plan import VirtualServerKey


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


def judge(key: VirtualServerKey, client: Client, world: World, rules: Rules) -> Verdict:
    """Send the client's first packet on its way."""
    packet = Packet(int(key.protocol), client.address, key.address, key.port, client.interface)
    fate, why = _fate(packet, world, rules)
    masquerade = _masquerade(packet, world, rules) if fate is Fate.SERVED else ""
    return Verdict(client, fate, why, masquerade)


def _fate(packet: Packet, world: World, rules: Rules) -> tuple[Fate, str]:
    if not world.is_local:
        return Fate.PASSED_ON, "the address is not this node's, and no local route leads to it"
    ruling, why = rules.admission(packet, world.sets, has_virtual_server=world.real_servers is not None)
    if ruling is Ruling.REFUSED:
        return Fate.REFUSED, why
    if ruling is Ruling.DROPPED:
        return Fate.DROPPED, why
    if world.serving:
        return Fate.SERVED, why or "no rule is against it"
    if world.real_servers is not None:
        return Fate.REFUSED, "its virtual server has no real server that takes new connections"
    return Fate.HOST, "no virtual server and no rule is for it"


def _masquerade(packet: Packet, world: World, rules: Rules) -> str:
    """The source that the real servers see; each by itself where they do not see the same."""
    said = list(map(_source, rules.sources(packet, world.serving, world.sets)))
    if len(set(said)) == 1:
        return said[0]
    return "; ".join(f"to {address}:{port}: {text}" for (address, port), text in zip(world.serving, said, strict=True))


def _source(choice: SourceChoice) -> str:
    why = f" ({choice.why})" if choice.why else ""
    if choice.is_kept:
        return f"the client's address is kept{why}"
    return f"source {choice.address}{why}" if choice.address else f"masqueraded{why}"
