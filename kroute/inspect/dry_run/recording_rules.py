"""Recording clients for rules and the sets that they look up."""

import errno
from collections.abc import Sequence

from kroute.inspect.dry_run.recording import ADD, DELETE, EDIT, Recorder
from kroute.kernel.digest import Digest
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.firewall_clients import IpsetClient, XtablesClient
from kroute.kernel.ipset import AddEntry, Element, SetChange, SetDefinition
from kroute.kernel.iptables.xtables import TableRules


class RecordingIpset:
    """The sets and their entries."""

    def __init__(self, ipset: IpsetClient, recorder: Recorder) -> None:
        self._ipset = ipset
        self._recorder = recorder
        self._made: dict[str, SetDefinition] = {}

    async def names(self) -> set[str]:
        """The names of the kernel's sets, and of those that are only recorded."""
        return await self._recorder.answered(self._ipset.names()) | self._made.keys()

    async def definition(self, name: str) -> SetDefinition | None:
        """The recorded definition, else the kernel's."""
        return self._made.get(name) or await self._recorder.answered(self._ipset.definition(name))

    async def create(self, definition: SetDefinition) -> bool:
        self._made[definition.name] = definition
        self._recorder.note("set", ADD, f"create set {definition.name} ({definition.type})")
        return True

    async def read(self, name: str) -> set[Element]:
        """The kernel's entries. A set that is only recorded has none."""
        return set() if name in self._made else await self._recorder.answered(self._ipset.read(name))

    async def digest(self, name: str) -> Digest | None:
        return await self._ipset.digest(name)

    async def write(self, changes: Sequence[SetChange]) -> list[Failure[SetChange]]:
        for change in changes:
            action = ADD if isinstance(change, AddEntry) else DELETE
            self._recorder.note("set entry", action, str(change), (change.set, change.element))
        return []

    async def swap(self, name: str, other: str) -> None:
        """Recorded."""
        self._recorder.note("set", EDIT, f"swap the sets {name} and {other}")

    async def destroy(self, name: str) -> None:
        self._made.pop(name, None)
        self._recorder.note("set", DELETE, f"destroy set {name}")


class RecordingXtables:
    """The rules of one family. Unreadable tables are no error of the dry run: the family may not exist on the node."""

    def __init__(self, xtables: XtablesClient, recorder: Recorder, family_name: str) -> None:
        self._xtables = xtables
        self._recorder = recorder
        self._family_name = family_name

    async def ensure(self, rules: TableRules) -> list[str]:
        """Record the differences."""
        found = await self.differences(rules)
        for what in found:
            self._recorder.note("rules", EDIT, f"write the {self._family_name} rules of table {rules.table}: {what}")
        return found

    async def differences(self, rules: TableRules) -> list[str]:
        """The differences from the kernel's rules. A table that nobody has used is not read, which would create it."""
        return await self._differences(rules) if await self._xtables.is_used(rules.table) else _all_missing(rules)

    async def is_used(self, table: str) -> bool:
        return await self._xtables.is_used(table)

    async def chains(self, table: str) -> list[str]:
        return await self._xtables.chains(table)

    async def digest(self, tables: Sequence[str]) -> Digest:
        return await self._xtables.digest(tables)

    async def supports_random_fully(self) -> bool:
        """Whether the kernel supports it. If the nat table is unused, it is assumed: asking would create the table."""
        return await self._xtables.supports_random_fully() if await self._xtables.is_used("nat") else True

    async def remove(self, table: str, prefix: str) -> list[str]:
        self._recorder.note("rules", DELETE, f"remove the {self._family_name} chains {prefix}... of table {table}")
        return []

    async def _differences(self, rules: TableRules) -> list[str]:
        try:
            return await self._xtables.differences(rules)
        except KernelError as error:
            if error.errno != errno.ENOENT:
                self._recorder.unknown.append(f"the {self._family_name} rules cannot be compared: {error}")
                raise
            return _all_missing(rules)  # a set is missing, so no rule can name it


def _all_missing(rules: TableRules) -> list[str]:
    return [f"chain {name} is missing" for name in rules.chains]
