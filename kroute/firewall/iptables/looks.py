"""Tells whether somebody else has changed kroute's sets or the tables with its rules, without reading them.

Neither ipset nor the legacy tables report their changes or count them, so the kernel lists all of it for a digest.
"""

from collections.abc import Iterable

from kroute.kernel.digest import Digest, LastLook
from kroute.kernel.errors import KernelError
from kroute.kernel.firewall_clients import IpsetClient, XtablesClient


class SetLooks:
    """One `LastLook` for each set."""

    def __init__(self, ipset: IpsetClient) -> None:
        self._ipset = ipset
        self._last: dict[str, LastLook] = {}

    async def reads(self, name: str) -> None:
        """Call this before the set is read."""
        self._of(name).read(await self._ipset.digest(name))

    def wrote(self, names: Iterable[str]) -> None:
        """Call this when sets were changed by kroute, in their elements or by rules that refer to them."""
        for name in names:
            self._of(name).wrote()

    async def is_same(self, name: str, elements: int) -> bool:
        """Whether the set is as it was, or, after a write, has so many elements."""
        return self._of(name).is_same(await self._ipset.digest(name), (elements,))

    def _of(self, name: str) -> LastLook:
        return self._last.setdefault(name, LastLook())


class RuleLooks:
    """The digests of all tables. `clients` are those for the legacy tables and for those of iptables-nft."""

    def __init__(self, clients: Iterable[tuple[XtablesClient, tuple[str, ...]]]) -> None:
        self._clients = list(clients)
        self._last: list[Digest] | None = None

    async def digests(self) -> list[Digest] | None:
        """The digests now; None if some are refused."""
        try:
            return [await client.digest(tables) for client, tables in self._clients]
        except KernelError:
            return None  # then the rules themselves are compared, and that says what is wrong

    async def compared(self, before: list[Digest] | None, *, are_right: bool) -> bool:
        """All rules have been compared, and the wrong ones written; returns whether all are as they were `before` that.

        After a write, or if not all `are_right`, the next look does not know what was compared.
        """
        is_same = before == await self.digests()
        self._last = before if is_same and are_right else None
        return is_same

    async def are_same(self) -> bool:
        """Whether all tables are as they were when they were last compared and found right."""
        return self._last is not None and self._last == await self.digests()
