"""The IP sets of a fake kernel."""

import errno
import ipaddress
from collections.abc import Sequence

from kroute.kernel.digest import Digest
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.ipset import AddEntry, Element, SetChange, SetDefinition, encode_entry
from tests.fakes.client import FakeClient
from tests.fakes.kernel import FakeSet

IPSET_ERR_TYPE_MISMATCH = 4102
IPSET_ERR_INVALID_CIDR = 4104
IPSET_ERR_HASH_FULL = 4352


class FakeIpset(FakeClient):
    """Same shape as kroute.kernel.ipset.Ipset."""

    async def names(self) -> set[str]:
        self.check_open()
        return set(self.kernel.sets)

    async def definition(self, name: str) -> SetDefinition | None:
        self.check_open()
        found = self.kernel.sets.get(name)
        return found.definition if found else None

    async def create(self, definition: SetDefinition) -> bool:
        self.check_open()
        found = self.kernel.sets.get(definition.name)
        if found:
            if not found.definition.fits(definition):
                raise KernelError(f"set {definition.name} exists with another type", errno=errno.EEXIST)
            return False
        self.kernel.operate("create set", definition.name)
        self.kernel.sets[definition.name] = FakeSet(definition)
        return True

    async def read(self, name: str) -> set[Element]:
        self.check_open()
        return set(self._existing(name).elements)

    async def digest(self, name: str) -> Digest | None:
        self.check_open()
        found = self.kernel.sets.get(name)
        if found is None:
            return None
        return Digest(hash((found.definition, frozenset(found.elements))), (len(found.elements),))

    async def write(self, changes: Sequence[SetChange]) -> list[Failure[SetChange]]:
        self.check_open()
        failures = []
        for change in changes:
            number = self.kernel.refusal(change) or self._make(change)
            if number:
                failures.append(Failure(change, number))
            else:
                self.kernel.writes.append(change)
        return failures

    async def swap(self, name: str, other: str) -> None:
        if not {name, other} <= self.kernel.sets.keys():
            raise KernelError(f"cannot swap the sets {name} and {other}: no such set", errno=errno.ENOENT)
        one, two = self.kernel.sets[name], self.kernel.sets[other]
        if (one.definition.type, one.definition.family) != (two.definition.type, two.definition.family):
            raise KernelError(f"cannot swap {name} and {other}: other types", errno=IPSET_ERR_TYPE_MISMATCH)
        self.kernel.operate("swap sets", f"{name} {other}")
        self.kernel.sets[name] = FakeSet(two.definition._replace(name=name), two.elements)
        self.kernel.sets[other] = FakeSet(one.definition._replace(name=other), one.elements)

    async def destroy(self, name: str) -> None:
        self.check_open()
        if name not in self.kernel.sets:
            return
        if self._is_in_use(name):
            raise KernelError(f"cannot destroy set {name}: a rule uses it", errno=errno.EBUSY)
        self.kernel.operate("destroy set", name)
        del self.kernel.sets[name]

    def _existing(self, name: str) -> FakeSet:
        found = self.kernel.sets.get(name)
        if found is None:
            raise KernelError(f"no set {name}", errno=errno.ENOENT)
        return found

    def _is_in_use(self, name: str) -> bool:
        rules = [rule for table in self.kernel.tables.values() for chain in table.chains.values() for rule in chain]
        return any(f"--match-set {name} " in rule for rule in rules)

    def _make(self, change: SetChange) -> int:
        found = self.kernel.sets.get(change.set)
        if found is None:
            return errno.ENOENT
        try:
            encode_entry(tuple(found.definition.type.partition(":")[2].split(",")), change.element)
        except ValueError:
            return IPSET_ERR_TYPE_MISMATCH
        if any(str(part).endswith("/0") for part in change.element):
            return IPSET_ERR_INVALID_CIDR
        return self._enter(found, change)

    def _enter(self, found: FakeSet, change: SetChange) -> int:
        if not isinstance(change, AddEntry):
            found.elements.discard(change.element)
            return 0
        if ipaddress.ip_network(change.element[0]).version != (6 if ":" in str(change.element[0]) else 4):
            return errno.EINVAL
        if change.element not in found.elements and len(found.elements) >= found.definition.maxelem:
            return IPSET_ERR_HASH_FULL
        found.elements.add(change.element)
        return 0
