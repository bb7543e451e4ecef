"""The chains of one table with their rules, and a packet's way through them."""

from collections.abc import Sequence

import msgspec

from kroute.firewall.nftables.statements import Action, Rule, Verb
from kroute.firewall.packet_trace import Fate, Hook, TraceResult
from kroute.firewall.packets import Packet
from kroute.firewall.sets import Sets
from kroute.kernel.nftables.objects import Chain
from kroute.kernel.nftables.objects import Rule as KernelRule

ENDS = {Verb.DROP: Fate.DROPPED, Verb.REFUSE: Fate.REFUSED, Verb.TRANSLATE: Fate.TRANSLATED}
"""The verbs that end a packet's way through the hook."""


class BaseChain(msgspec.Struct, frozen=True):
    """Where the kernel sends packets into a chain. `type`, `name` and `priority` are nft's."""

    hook: Hook
    type: str
    name: str
    priority: int


class ChainRules(msgspec.Struct, frozen=True):
    """A chain with all its rules."""

    name: str
    rules: Sequence[Rule]
    base: BaseChain | None = None

    @property
    def chain(self) -> Chain:
        """The chain as the kernel has it."""
        if self.base is None:
            return Chain(self.name)
        return Chain(self.name, self.base.type, self.base.name, self.base.priority)

    @property
    def kernel_rules(self) -> list[KernelRule]:
        """The rules as the kernel has them."""
        return [KernelRule(self.name, it.expressions, it.comment) for it in self.rules]


def trace(chains: Sequence[ChainRules], hook: Hook, packet: Packet, sets: Sets) -> TraceResult:
    """Send a packet through the base chain of a hook.

    The comments of a base chain's jumps are left out: they say which packets are looked at, and not why.
    """
    base = next(it for it in chains if it.base is not None and it.base.hook is hook)
    by_name = {it.name: it for it in chains}
    met: list[str] = []
    action, packet = _trace(by_name, base, packet, sets, met)
    if action is None:
        return TraceResult(Fate.NONE, "", tuple(met), packet.mark)
    return TraceResult(ENDS[action.verb], action.detail, tuple(met), packet.mark)


def _trace(
    chains: dict[str, ChainRules], chain: ChainRules, packet: Packet, sets: Sets, met: list[str]
) -> tuple[Action | None, Packet]:
    """The action that ended the packet's way, or None, and the packet behind the chain."""
    for rule in chain.rules:
        after = rule.meet(packet, sets)
        if after is None:
            continue
        packet, action = after, rule.action
        leads_on = action is not None and action.verb is Verb.JUMP
        if chain.base is None or not leads_on:
            met.append(rule.comment)
        if action is not None and leads_on:
            action, packet = _trace(chains, chains[action.detail], packet, sets, met)
        if action is not None and action.verb is Verb.RETURN:
            return None, packet
        if action is not None:
            return action, packet
    return None, packet
