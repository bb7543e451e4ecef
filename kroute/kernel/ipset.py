"""IP sets: create and read them, and change their elements in batches.

Each element has its own message, and one `send()` has many messages. ip_set would also take many elements in one
message, but stops at the first that it refuses. With one message for each element, every refusal is known.
"""

import asyncio
import errno
import socket
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from kroute.kernel.digest import Digest
from kroute.kernel.errors import Failure, KernelError, describe_errno
from kroute.kernel.ipset_messages import (
    CMD_ADD,
    CMD_CREATE,
    CMD_DEL,
    CMD_DESTROY,
    CMD_FLUSH,
    CMD_LIST,
    CMD_SWAP,
    FLAG_LIST_HEADER,
    FLAG_LIST_SETNAME,
    Element,
    encode_create,
    encode_entry,
    encode_list_flags,
    encode_type_query,
    entry_message,
    parse_definition,
    parse_elements,
    parse_name,
    parse_size,
    parse_type,
    second_set_name,
    set_message,
    set_name,
)
from kroute.kernel.modules import is_present
from kroute.kernel.netlink.client import NetlinkClient, only
from kroute.kernel.netlink.message import NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER
from kroute.kernel.set_elements import element_text

__all__ = ["AddEntry", "DeleteEntry", "Element", "Ipset", "SetChange", "SetDefinition"]

IPSET_ERR_BUSY = 4100
IPSET_ERR_TYPE_MISMATCH = 4102
IPSET_ERR_HASH_FULL = 4352
WRITE_SLICE = 256
"""How many changes are encoded before other tasks run."""
PARTS_A_TURN = 16
"""How many parts of a listing, of some hundred elements each, are joined before other tasks run."""


class SetDefinition(NamedTuple):
    """A hash set. `type` is as in ipset(8) ("hash:ip,port"). Sizes are in elements; the kernel rounds hashsize up."""

    name: str
    type: str
    family: int = socket.AF_INET
    hashsize: int = 1024
    maxelem: int = 65536

    def fits(self, desired: "SetDefinition") -> bool:
        """Whether this set can serve as the desired one: it has the same type and family, and as much room or more."""
        return (self.type, self.family) == (desired.type, desired.family) and self.maxelem >= desired.maxelem

    @property
    def words(self) -> tuple[str, ...]:
        """The words for the parts of an element, such as ("ip", "port")."""
        return tuple(self.type.partition(":")[2].split(","))


class AddEntry(NamedTuple):
    """Add an element to a set. One that the set has already is no failure. Refused: ENOENT if the set does not exist.

    An element by type: hash:ip (address,); hash:net (cidr,); hash:ip,port (address, protocol number, port);
    hash:ip,port,ip (address, protocol number, port, address); hash:ip,port,net (address, protocol number, port, cidr).
    """

    set: str
    element: Element

    def __str__(self) -> str:
        return f"add {element_text(self.element)} to set {self.set}"


class DeleteEntry(NamedTuple):
    """Delete an element from a set. One that the set does not have is no failure. Refused: ENOENT without the set."""

    set: str
    element: Element

    def __str__(self) -> str:
        return f"delete {element_text(self.element)} from set {self.set}"


SetChange: TypeAlias = AddEntry | DeleteEntry


class Ipset(NetlinkClient):
    """The IP sets of the calling process's network namespace."""

    def __init__(self) -> None:
        super().__init__(NETLINK_NETFILTER)
        self._words: dict[str, tuple[str, ...]] = {}

    async def names(self) -> set[str]:
        """The names of all sets, foreign ones too; none if the kernel has not loaded ip_set. This does not load it."""
        if not is_present("ip_set"):
            return set()
        query = set_message(CMD_LIST, NLM_F_DUMP, encode_list_flags(FLAG_LIST_SETNAME))
        try:
            return set(await self._netlink.request(query, lambda _, payload: parse_name(payload)))
        except KernelError as error:
            if error.errno == errno.EINVAL:  # it is in the kernel's image, and was kept from starting
                return set()
            raise

    async def definition(self, name: str) -> SetDefinition | None:
        """The definition of the set as the kernel has it; None if no set has that name."""
        query = set_message(CMD_LIST, NLM_F_DUMP, set_name(name), encode_list_flags(FLAG_LIST_HEADER))
        try:
            found = await self._netlink.request(query, lambda _, payload: parse_definition(payload))
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return SetDefinition(*found[0]) if found else None

    async def create(self, definition: SetDefinition) -> bool:
        """Make the set; returns False if one that fits exists. Raises KernelError EEXIST for one that does not fit."""
        family = definition.family
        body = encode_create(
            definition.name,
            definition.type,
            await self._newest_revision(definition),
            family,
            definition.hashsize,
            definition.maxelem,
        )
        refused = await self._netlink.transact(
            [set_message(CMD_CREATE, NLM_F_CREATE | NLM_F_EXCL, body, family=family)]
        )
        for number in refused.values():
            if number != errno.EEXIST:
                sentence = f"cannot create set {definition.name} ({definition.type}): {describe_errno(number)}"
                raise KernelError(f"{sentence}; choose other sizes", errno=number)
            found = await self.definition(definition.name)
            if found is None or not found.fits(definition):
                sentence = f"set {definition.name} exists, but is no {definition.type} of {definition.maxelem} elements"
                raise KernelError(f"{sentence}; destroy it first", errno=number)
            return False
        return True

    async def read(self, name: str) -> set[Element]:
        """The elements of the set. Raises KernelError ENOENT if no set has that name."""
        words = await self._words_of(name)
        query = set_message(CMD_LIST, NLM_F_DUMP, set_name(name))
        elements: set[Element] = set()
        for number, part in enumerate(
            await self._netlink.request(query, lambda _, payload: parse_elements(words, payload))
        ):
            elements.update(part)
            if number % PARTS_A_TURN == 0:
                await asyncio.sleep(0)
        return elements

    async def digest(self, name: str) -> Digest | None:
        """A digest of the set, with the number of its elements; None if no set has that name."""
        try:
            found = await self._digest(set_message(CMD_LIST, NLM_F_DUMP, set_name(name)))
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return Digest(found.checksum, (parse_size(found.first),))

    async def write(self, changes: Sequence[SetChange]) -> list[Failure[SetChange]]:
        """Make the changes in order; those that the kernel refuses do not stop the others."""
        self._words.clear()
        failures: list[Failure[SetChange]] = []
        for start in range(0, len(changes), WRITE_SLICE):
            failures += await self._write(changes[start : start + WRITE_SLICE])
        return failures

    async def flush(self, name: str) -> None:
        """Empty the set. Raises KernelError ENOENT if no set has that name."""
        for number in (await self._netlink.transact([set_message(CMD_FLUSH, 0, set_name(name))])).values():
            raise KernelError(f"cannot flush set {name}: {describe_errno(number)}; create it first", errno=number)

    async def destroy(self, name: str) -> None:
        """Destroy the set, if it exists. Raises KernelError EBUSY while a rule or another set refers to it."""
        for number in (await self._netlink.transact([set_message(CMD_DESTROY, 0, set_name(name))])).values():
            if number == IPSET_ERR_BUSY:
                sentence = f"cannot destroy set {name}: a rule or another set refers to it; remove that first"
                raise KernelError(sentence, errno=errno.EBUSY)
            if number != errno.ENOENT:
                raise KernelError(f"cannot destroy set {name}: {describe_errno(number)}; trying later", errno=number)

    async def swap(self, name: str, other: str) -> None:
        """Let two sets of one type change names in one step: rules that look into the one look into the other then.

        KernelError ENOENT without the first set; EBUSY while somebody lists one of them.
        """
        message = set_message(CMD_SWAP, 0, set_name(name), second_set_name(other))
        for number in (await self._netlink.transact([message])).values():
            sentence = f"cannot swap the sets {name} and {other}: {describe_errno(number)}; trying later"
            raise KernelError(sentence, errno=number)

    async def _write(self, changes: Sequence[SetChange]) -> list[Failure[SetChange]]:
        messages: list[bytes] = []
        sent: list[SetChange] = []
        failures: list[Failure[SetChange]] = []
        for change in changes:
            try:
                words = self._words.get(change.set) or await self._words_of(change.set)
                entry = encode_entry(words, change.element)
            except KernelError as error:
                failures.append(Failure(change, error.errno or errno.EIO))
            except ValueError:
                failures.append(Failure(change, IPSET_ERR_TYPE_MISMATCH))
            else:
                command = CMD_ADD if isinstance(change, AddEntry) else CMD_DEL
                messages.append(entry_message(command, change.set, entry))
                sent.append(change)
        refused = await self._netlink.transact(messages)
        return failures + [Failure(sent[index], number) for index, number in refused.items()]

    async def _newest_revision(self, definition: SetDefinition) -> int:
        """The newest revision that the kernel has of the set type. The kernel loads the type's module to answer."""
        query = encode_type_query(definition.type, definition.family)
        try:
            return only(await self._netlink.request(query, lambda _, payload: parse_type(payload)))
        except KernelError as error:
            sentence = f"cannot create set {definition.name}: {describe_errno(error.errno or errno.EIO)}"
            module = f"ip_set_{definition.type.replace(':', '_').replace(',', '')}"
            raise KernelError(f"{sentence}; load the module {module}", errno=error.errno) from error

    async def _words_of(self, name: str) -> tuple[str, ...]:
        found = await self.definition(name)
        if found is None:
            raise KernelError(f"there is no set {name}; create it first", errno=errno.ENOENT)
        self._words[name] = found.words
        return found.words
