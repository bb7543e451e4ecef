"""What rules consist of: each statement is one value for the kernel, for people, and for the packet trace."""

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from kroute.firewall.packets import Packet
from kroute.firewall.sets import Sets


class Verb(Enum):
    """What an action does that ends a packet's way through a chain, or leads it to another one."""

    JUMP = auto()
    RETURN = auto()
    DROP = auto()
    REFUSE = auto()
    TRANSLATE = auto()


class Action(msgspec.Struct, frozen=True):
    """`detail` is the chain of a JUMP, how a packet is REFUSEd, and the source to which it is TRANSLATEd.

    The source is "" if the kernel chooses it.
    """

    verb: Verb
    detail: str = ""


class Statement(msgspec.Struct, frozen=True):
    """A match or an action in the rules of one family.

    `text` is what nft prints, `expressions` what the kernel has. `meet` takes the first packet of a connection to a
    port, a SYN if it is TCP, and returns it as it is behind the statement; None if it does not match.
    """

    text: str
    expressions: tuple[bytes, ...]
    meet: Callable[[Packet, Sets], Packet | None]
    action: Action | None = None


def matching(text: str, expressions: tuple[bytes, ...], matches: Callable[[Packet, Sets], bool]) -> Statement:
    """A statement that only looks at packets."""
    return Statement(text, expressions, lambda packet, sets: packet if matches(packet, sets) else None)


def always(text: str, *expressions: bytes) -> Statement:
    """A match that every traced packet passes."""
    return matching(text, expressions, lambda _packet, _sets: True)


def never(text: str, *expressions: bytes) -> Statement:
    """A match that no traced packet passes."""
    return matching(text, expressions, lambda _packet, _sets: False)


class Rule(NamedTuple):
    """The statements in the order in which a packet meets them, and why there is such a rule."""

    statements: tuple[Statement, ...]
    comment: str

    @property
    def text(self) -> str:
        """The rule as nft prints it, with its comment."""
        return " ".join([it.text for it in self.statements if it.text] + [f'comment "{self.comment}"'])

    @property
    def expressions(self) -> tuple[bytes, ...]:
        return tuple(expression for it in self.statements for expression in it.expressions)

    @property
    def action(self) -> Action | None:
        return self.statements[-1].action

    def meet(self, packet: Packet, sets: Sets) -> Packet | None:
        """The packet behind the rule, perhaps with another mark; None if it does not match."""
        for statement in self.statements:
            after = statement.meet(packet, sets)
            if after is None:
                return None
            packet = after
        return packet


def rule(comment: str, *statements: Statement) -> Rule:
    return Rule(statements, comment)
