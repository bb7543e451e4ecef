"""The Protocols of the clients that serve a firewall: IP sets, iptables and nf_tables. `clients` explains them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kroute.kernel.digest import Digest
    from kroute.kernel.errors import Failure
    from kroute.kernel.ipset import Element, SetChange, SetDefinition
    from kroute.kernel.iptables.xtables import TableRules
    from kroute.kernel.nftables import objects as nft
    from kroute.kernel.nftables.chains import NftChain
    from kroute.kernel.nftables.objects import ElementChange, NftChange, Table, TableState


class IpsetClient(Protocol):
    """IP sets."""

    async def names(self) -> set[str]:
        """The names of all sets."""

    async def definition(self, name: str) -> SetDefinition | None:
        """The set's type and size; None if it does not exist."""

    async def create(self, definition: SetDefinition) -> bool:
        """Make the set; returns False if one that fits exists. Raises KernelError EEXIST for one that does not fit."""

    async def read(self, name: str) -> set[Element]:
        """The elements of a set. Raises KernelError ENOENT if it does not exist."""

    async def digest(self, name: str) -> Digest | None:
        """A digest of a set, and how many elements it has; None if it does not exist."""

    async def write(self, changes: Sequence[SetChange]) -> list[Failure[SetChange]]:
        """Make the changes in order; returns those that the kernel refused."""

    async def swap(self, name: str, other: str) -> None:
        """Let two sets of one type change names in one step. KernelError without either, or for other types."""

    async def destroy(self, name: str) -> None:
        """Destroy the set, if it exists. Raises KernelError EBUSY while a rule or another set uses it."""


class XtablesClient(Protocol):
    """The iptables rules of one family."""

    async def ensure(self, rules: TableRules) -> list[str]:
        """Write the rules of a table that are missing or wrong; returns what was wrong, in words."""

    async def differences(self, rules: TableRules) -> list[str]:
        """What `ensure` would find wrong."""

    async def remove(self, table: str, prefix: str) -> list[str]:
        """Delete every chain whose name has the prefix, and every jump to one; returns what was deleted, in words."""

    async def is_used(self, table: str) -> bool:
        """Whether the table exists. The kernel makes a table when a program first reads or writes it."""

    async def chains(self, table: str) -> list[str]:
        """The names of a table's chains; none if the table does not exist."""

    async def digest(self, tables: Sequence[str]) -> Digest:
        """A digest of these tables, without their counters, and how many of them exist."""

    async def supports_random_fully(self) -> bool:
        """Whether MASQUERADE supports --random-fully."""


class ForeignChanges(AbstractAsyncContextManager["ForeignChanges"], Protocol):
    """Changes to some nf_tables tables by other sockets, from the moment at which the context manager is entered."""

    async def next(self) -> str:
        """Wait until somebody else has changed one of the tables; returns who, in words. One call may stand for many.

        It also returns when events were lost. The tables must be read again after each call.
        """


class NftablesClient(Protocol):
    """nf_tables. A change is refused with an errno that its class names; `kroute.kernel.nftables.objects` has them."""

    async def chains(self) -> list[NftChain]:
        """All chains of all families and programs; none if the kernel has not loaded nf_tables."""

    async def tables(self) -> list[tuple[str, str]]:
        """The family's name in nft(8) and the name of each table; none as above."""

    async def transact(self, table: Table, changes: Sequence[NftChange]) -> list[Failure[NftChange]]:
        """Make all changes in order, at one moment for packets; or none of them, and return those that are refused.

        Of changes of elements every refused element is returned, each as a change of its own. The event loop waits
        while the kernel works: some 10 us for each element. Raises KernelError when the outcome is unknown.
        """

    async def validate(self, table: Table, changes: Sequence[NftChange]) -> list[Failure[NftChange]]:
        """What `transact` would return. The kernel checks everything, loads the modules, and changes nothing."""

    async def write(self, table: Table, changes: Sequence[ElementChange]) -> list[Failure[NftChange]]:
        """Make changes of elements in order, in transactions so short that other tasks run every few milliseconds.

        Refused elements do not stop the others. One that is there already, or is gone already, is no failure.
        """

    async def read(self, table: Table) -> TableState | None:
        """Sets, chains and rules; None if there is no such table. Raises KernelError EINTR if it changes too fast."""

    def elements(self, table: Table, of: nft.NftSet) -> AsyncIterator[list[nft.Element]]:
        """The elements of a set, in parts of some hundreds. Raises KernelError ENOENT if there is no such set."""

    async def foreign_generation(self) -> int:
        """A number that stays the same as long as no other socket commits a transaction, to any table."""

    def foreign_changes(self, tables: Collection[Table]) -> ForeignChanges:
        """Follow changes of these tables that other sockets make. The caller opens what it gets."""
