"""Tells whether another program has changed tables of nf_tables since they were found right."""

from collections.abc import Callable, Collection

from kroute.kernel.clients import NftablesClient
from kroute.kernel.nftables.objects import Table


class TableWatch:
    """What is known of changes of these tables by other sockets than the client's."""

    def __init__(self, nftables: NftablesClient, tables: Collection[Table]) -> None:
        self._nftables = nftables
        self._tables = tables
        self._right: int | None = None
        self.is_following = False
        self._is_followed = False

    async def begin(self) -> int:
        """Call this before the tables are read. Returns what `found_right` takes when they were, and are as wanted."""
        self._right = None
        self._is_followed = self.is_following
        return await self._nftables.foreign_generation()

    def found_right(self, since: int) -> None:
        self._right = since

    def found_wrong(self) -> None:
        self._right = None

    async def is_untouched(self) -> bool:
        """Whether no other program has changed the tables since the `begin` of a reading that found everything right.

        If no other socket has committed to any table, none has. If one has, the events of these tables tell.
        """
        if self._right is None:
            return False
        return await self._nftables.foreign_generation() == self._right or self._is_followed

    async def follow(self, changed: Callable[[], None]) -> None:
        """Runs until it is cancelled. KernelError if the kernel reports nothing, or not any more."""
        async with self._nftables.foreign_changes(self._tables) as changes:
            self.is_following = True
            try:
                while True:
                    await changes.next()
                    self._is_followed = False
                    changed()
            finally:
                self.is_following = self._is_followed = False
