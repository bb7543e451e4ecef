"""The objects of an nf_tables table, and the changes of a transaction."""

import socket
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from kroute.kernel.errors import Change
from kroute.kernel.set_elements import element_text

Element: TypeAlias = tuple[str | int, ...]
"""The fields of an element, by the parts of its set; see `NftSet`."""

FAMILY_NAMES: dict[int, str] = {socket.AF_INET: "ip", socket.AF_INET6: "ip6"}


class Table(NamedTuple):
    """A table of the family AF_INET or AF_INET6, which are `ip` and `ip6` in nft(8)."""

    family: int
    name: str

    @property
    def listed_as(self) -> tuple[str, str]:
        """The family's name in nft(8) and the table's, as `Nftables.tables` lists it."""
        return FAMILY_NAMES.get(self.family, str(self.family)), self.name

    def __str__(self) -> str:
        return " ".join(self.listed_as)


def is_interval(parts: Sequence[str]) -> bool:
    """Whether a set of these parts has intervals of addresses, and not single keys."""
    return tuple(parts) == ("net",)


def has_ranges(parts: Sequence[str]) -> bool:
    """Whether a set of these parts has concatenations of intervals: a network, and ports from one to another."""
    return "ports" in parts


def is_verdict_map(parts: Sequence[str]) -> bool:
    return parts[-1:] == ("jump",)


class NftSet(NamedTuple):
    """A set, and what its elements consist of.

    Each part of an element has one field or two:
        ip    (address,)
        port  (protocol number, port)
        net   (address/prefix length,). Only the last part may be one. If it is the only part, the networks of the
              set must not overlap, and the set has every address in them. Behind other parts a network is a key like
              any other, of its first and its last address: the caller that looks it up computes these.
        ports (protocol number, first port, last port). Only behind a network at the beginning. No two elements of the
              set may have a packet in common, though their networks may be within each other.
        jump  (chain,), the last part. It belongs to no key: the set is a verdict map, which leads a packet to the
              chain. An element is deleted by its key.
    """

    name: str
    parts: tuple[str, ...]


class Chain(NamedTuple):
    """A chain. A base chain has a hook ("prerouting", "input", "forward", "output", "postrouting"); others have "".

    `type` is "filter", "nat" or "route", `priority` a number. `drops`: the policy is to drop; kroute's never is.
    """

    name: str
    type: str = ""
    hook: str = ""
    priority: int = 0
    drops: bool = False


class NftChain(NamedTuple):
    """A chain of any program. `family` is the family's name in nft(8).

    `hook` is that of a base chain in the families ip, ip6, inet and bridge, else "". `drops`: its policy is to drop.
    """

    family: str
    table: str
    name: str
    hook: str = ""
    drops: bool = False


class NftRule(NamedTuple):
    """A rule: the encoded expressions (`kroute.kernel.nftables.expressions`), and a comment of at most 127 bytes."""

    chain: str
    expressions: tuple[bytes, ...]
    comment: str = ""


class TableState(NamedTuple):
    """What a table has. Rules are in the order of their chains; each has the handle by which DeleteRule names it.

    While a table is dormant, no packet meets its chains.
    """

    sets: dict[str, NftSet]
    chains: dict[str, Chain]
    rules: list[tuple[int, NftRule]]
    is_dormant: bool = False


class AddTable(Change, frozen=True):
    """Make the table. One that exists is no failure, and is not dormant any more.

    Refused: EOPNOTSUPP if the kernel lacks the family.
    """

    words = "add the table"


class DeleteTable(Change, frozen=True):
    """Delete the table with all that it has. Refused: ENOENT if there is none. After AddTable it never is."""

    words = "delete the table"


class AddSet(Change, frozen=True):
    """Make a set. Refused: EEXIST if one has the name."""

    words = "add set {change.set.name}"

    set: NftSet


class DeleteSet(Change, frozen=True):
    """Delete a set with its elements. Refused: ENOENT if there is none, EBUSY while a rule refers to it."""

    words = "delete set {change.name}"

    name: str


class FlushSet(Change, frozen=True):
    """Delete all elements of a set. Refused: ENOENT if there is no such set."""

    words = "flush set {change.name}"

    name: str


class AddChain(Change, frozen=True):
    """Make a chain. Refused: EEXIST if one has the name, ENOENT or EOPNOTSUPP if the kernel lacks the type."""

    words = "add chain {change.chain.name}"

    chain: Chain


class DeleteChain(Change, frozen=True):
    """Delete a chain. Refused: ENOENT if there is none, EBUSY while it has rules or something jumps to it."""

    words = "delete chain {change.name}"

    name: str


class FlushChain(Change, frozen=True):
    """Delete all rules of a chain. Refused: ENOENT if there is no such chain."""

    words = "flush chain {change.name}"

    name: str


class AddRule(Change, frozen=True):
    """Add a rule at its chain's end.

    Refused: ENOENT if the chain, or one that the rule jumps to, or a set is missing, or the kernel lacks the
    expression; EINVAL or ENODATA if a set's key is longer than what the rule has loaded; EOPNOTSUPP if the expression
    is not for the hook; EMLINK if jumps go in a circle, which `validate` does not always find.
    """

    rule: NftRule

    def __str__(self) -> str:
        named = f' "{self.rule.comment}"' if self.rule.comment else ""
        return f"add a rule{named} to chain {self.rule.chain}"


class DeleteRule(Change, frozen=True):
    """Delete a rule by its handle, which `read` found. Refused: ENOENT if there is none."""

    words = "delete rule {change.handle} of chain {change.chain}"

    chain: str
    handle: int


class AddElements(Change, frozen=True):
    """Add elements to a set. Those that the set has are no failure.

    Refused: ENOENT if there is no such set or chain, EINVAL for an element that does not fit, EEXIST or ENOTEMPTY for
    a network that overlaps another one, EEXIST for a key that leads to another chain.
    """

    set: NftSet
    elements: tuple[Element, ...]

    def __str__(self) -> str:
        return f"add {_in_words(self.elements)} to set {self.set.name}"


class DeleteElements(Change, frozen=True):
    """Delete elements from a set. Refused: ENOENT for one that the set does not have, and if there is no such set."""

    set: NftSet
    elements: tuple[Element, ...]

    def __str__(self) -> str:
        return f"delete {_in_words(self.elements)} from set {self.set.name}"


ElementChange: TypeAlias = AddElements | DeleteElements
ChangeByName: TypeAlias = DeleteSet | FlushSet | DeleteChain | FlushChain
NftChange: TypeAlias = AddTable | DeleteTable | AddSet | AddChain | AddRule | DeleteRule | ChangeByName | ElementChange


def _in_words(elements: tuple[Element, ...]) -> str:
    if len(elements) != 1:
        return f"{len(elements)} elements"
    return element_text(elements[0])
