"""What happens to a client's first packet on this node, in the order of docs/firewall-rules.md.

The verdict follows from kroute's rules and from the kernel's state.
"""

from enum import StrEnum

import msgspec

from kroute.firewall.packets import Packet, Rules, Ruling, SourceChoice
from kroute.firewall.reasons import IN_WORDS
from kroute.inspect.applied_state import AppliedState
from kroute.model.addresses import host_port
from kroute.model.plan import VirtualServerKey


class Fate(StrEnum):
    """The outcome for a new connection."""

    SERVED = "served"
    REFUSED = "refused"
    """The client gets a TCP reset or an ICMP error at once."""
    DROPPED = "dropped"
    """The client waits until it times out."""
    HOST = "left to the node"
    """No Service has it: the node itself answers, if something listens there."""
    PASSED_ON = "passed on"
    """Not for this node: routed like any other packet."""


class Client(msgspec.Struct, frozen=True, rename="camel"):
    """A client. Without `interface` it is a process of this node."""

    name: str
    address: str
    interface: str


class Verdict(msgspec.Struct, frozen=True, rename="camel"):
    """The outcome of a client's new connection, and why. `masquerade` says which source the real servers see."""

    client: Client
    fate: Fate
    why: str
    masquerade: str


_AGAINST = {Ruling.REFUSED: Fate.REFUSED, Ruling.DROPPED: Fate.DROPPED}


def judge(key: VirtualServerKey, client: Client, applied: AppliedState, rules: Rules) -> Verdict:
    """Trace the client's first packet."""
    packet = Packet(int(key.protocol), client.address, key.address, key.port, client.interface)
    fate, why = _fate(packet, applied, rules)
    comment, *how = why.partition(" (")  # of a refusal, how it is refused is in brackets
    why = "".join([IN_WORDS.get(comment, comment), *how])
    masquerade = _masquerade(packet, applied, rules) if fate is Fate.SERVED else ""
    return Verdict(client, fate, why, masquerade)


def _fate(packet: Packet, applied: AppliedState, rules: Rules) -> tuple[Fate, str]:
    if not applied.is_local:
        return Fate.PASSED_ON, "the address is not this node's, and no local route leads to it"
    if applied.route is None and not packet.in_interface:
        return Fate.REFUSED, "this node has no route towards it, and its own calls need one"
    ruling, why = rules.admission(packet, applied.sets, has_virtual_server=applied.server is not None)
    if ruling in _AGAINST:
        return _AGAINST[ruling], why
    if applied.serving:
        return Fate.SERVED, why or "no rule is against it"
    if applied.server is not None:
        return Fate.REFUSED, "its virtual server has no real server that takes new connections"
    return Fate.HOST, "no virtual server and no rule is for it"


def _masquerade(packet: Packet, applied: AppliedState, rules: Rules) -> str:
    """The source that the real servers see, listed for each of them if they do not all see the same."""
    if applied.is_tunnelled:
        return "the client's address is kept (packets go on as they are, in a tunnel)"
    serving = applied.serving
    said = list(map(_source, rules.sources(packet, serving, applied.sets)))
    if len(set(said)) == 1:
        return said[0]
    names = [host_port(*it) for it in serving]
    return "; ".join(f"to {name}: {text}" for name, text in zip(names, said, strict=True))


def _source(choice: SourceChoice) -> str:
    why = f" ({IN_WORDS.get(choice.why, choice.why)})" if choice.why else ""
    if choice.is_kept:
        return f"the client's address is kept{why}"
    return f"source {choice.address}{why}" if choice.address else f"masqueraded{why}"
