"""IP sets: create and read them, and change their elements in batches.

Each element has its own message, and one `send()` has many messages. ip_set would also take many elements in one
message, but stops at the first that it refuses. With one message for each element, every refusal is known. The numbers
are those of include/uapi/linux/netfilter/ipset/ip_set.h.
"""

import asyncio
import errno
import socket
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from socket import AF_INET, AF_INET6, inet_pton
from typing import NamedTuple, TypeAlias

from kroute.kernel.digest import Digest
from kroute.kernel.errors import Change, Failure, KernelError, describe_errno, none_if_refused, raise_refusal
from kroute.kernel.modules import is_present
from kroute.kernel.netlink.client import ENCODE_SLICE, NetlinkClient, only
from kroute.kernel.netlink.message import (
    NFNETLINK_HEADER,
    NLA_F_NESTED,
    NLA_F_NET_BYTEORDER,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    attributes,
    be16,
    be32,
    iterate_attributes,
    message,
    nested,
    nfnetlink_message,
    text,
    to_be16,
    to_text,
    u8,
    unpack_address,
)
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER
from kroute.kernel.set_elements import element_text

NFNL_SUBSYS_IPSET = 6
PROTOCOL_VERSION = 6
CMD_CREATE, CMD_DESTROY, CMD_SWAP, CMD_LIST, CMD_ADD, CMD_DEL, CMD_TYPE = 2, 3, 6, 7, 9, 10, 13

ATTR_PROTOCOL, ATTR_SETNAME, ATTR_TYPENAME, ATTR_REVISION, ATTR_FAMILY, ATTR_FLAGS, ATTR_DATA, ATTR_ADT = range(1, 9)
ATTR_SETNAME2 = ATTR_TYPENAME
FLAG_LIST_SETNAME = 1 << 1
FLAG_LIST_HEADER = 1 << 2

ENTRY_IP, ENTRY_CIDR, ENTRY_PORT, ENTRY_PROTO, ENTRY_IP2, ENTRY_CIDR2 = 1, 3, 4, 7, 20, 21
ADDRESS_KINDS = ((ENTRY_IP, ENTRY_CIDR), (ENTRY_IP2, ENTRY_CIDR2))
"""The attributes of an element's first and second address, each with that of its prefix length."""
CREATE_HASHSIZE, CREATE_MAXELEM, HEADER_ELEMENTS = 18, 19, 24
IPADDR_IPV4, IPADDR_IPV6 = 1, 2

Element = tuple[str | int, ...]

_ADDRESS4, _ADDRESS6 = struct.Struct("=HHHH4s"), struct.Struct("=HHHH16s")
"""An attribute that holds one attribute with an address."""
IPSET_ERR_BUSY = 4100
IPSET_ERR_TYPE_MISMATCH = 4102
IPSET_ERR_HASH_FULL = 4352
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


class AddEntry(Change, frozen=True):
    """Add an element to a set. One that the set has already is no failure. Refused: ENOENT if the set does not exist.

    An element by type: hash:ip (address,); hash:net (cidr,); hash:ip,port (address, protocol number, port);
    hash:ip,port,ip (address, protocol number, port, address); hash:ip,port,net (address, protocol number, port, cidr).
    """

    set: str
    element: Element

    def __str__(self) -> str:
        return f"add {element_text(self.element)} to set {self.set}"


class DeleteEntry(Change, frozen=True):
    """Delete an element from a set. One that the set does not have is no failure. Refused: ENOENT without the set."""

    set: str
    element: Element

    def __str__(self) -> str:
        return f"delete {element_text(self.element)} from set {self.set}"


SetChange: TypeAlias = AddEntry | DeleteEntry


class Ipset(NetlinkClient):
    """The IP sets of the calling process's network namespace."""

    protocol = NETLINK_NETFILTER

    def __init__(self) -> None:
        super().__init__()
        self._words: dict[str, tuple[str, ...]] = {}

    async def names(self) -> set[str]:
        """The names of all sets, foreign ones too; none if the kernel has not loaded ip_set. This does not load it."""
        if not is_present("ip_set"):
            return set()
        query = set_message(CMD_LIST, NLM_F_DUMP, encode_list_flags(FLAG_LIST_SETNAME))
        # EINVAL: ip_set is in the kernel's image, and was kept from starting
        return set(await none_if_refused(self.netlink.request(query, parse_name), errno.EINVAL) or ())

    async def definition(self, name: str) -> SetDefinition | None:
        """The definition of the set as the kernel has it; None if no set has that name."""
        query = set_message(CMD_LIST, NLM_F_DUMP, set_name(name), encode_list_flags(FLAG_LIST_HEADER))
        found = await none_if_refused(self.netlink.request(query, parse_definition), errno.ENOENT)
        return found[0] if found else None

    async def create(self, definition: SetDefinition) -> bool:
        """Make the set; returns False if one that fits exists. Raises KernelError EEXIST for one that does not fit."""
        body = encode_create(definition, await self._newest_revision(definition))
        flags = NLM_F_CREATE | NLM_F_EXCL
        refused = await self.netlink.transact([set_message(CMD_CREATE, flags, body, family=definition.family)])
        name, kind = definition.name, definition.type
        raise_refusal(refused, f"create set {name} ({kind})", "choose other sizes", {errno.EEXIST})
        if refused and ((found := await self.definition(name)) is None or not found.fits(definition)):
            sentence = f"set {name} exists, but is no {kind} of {definition.maxelem} elements; destroy it first"
            raise KernelError(sentence, errno=errno.EEXIST)
        return not refused

    async def read(self, name: str) -> set[Element]:
        """The elements of the set. Raises KernelError ENOENT if no set has that name."""
        words = await self._words_of(name)
        query = set_message(CMD_LIST, NLM_F_DUMP, set_name(name))
        elements: set[Element] = set()
        for number, part in enumerate(await self.netlink.request(query, partial(parse_elements, words))):
            elements.update(part)
            if number % PARTS_A_TURN == 0:
                await asyncio.sleep(0)
        return elements

    async def digest(self, name: str) -> Digest | None:
        """A digest of the set, with the number of its elements; None if no set has that name."""
        found = await none_if_refused(
            self.digests.digest(set_message(CMD_LIST, NLM_F_DUMP, set_name(name))), errno.ENOENT
        )
        return Digest(found.checksum, (parse_size(found.first),)) if found is not None else None

    async def write(self, changes: Sequence[SetChange]) -> list[Failure[SetChange]]:
        """Make the changes in order; those that the kernel refuses do not stop the others."""
        self._words.clear()
        failures: list[Failure[SetChange]] = []
        for start in range(0, len(changes), ENCODE_SLICE):
            failures += await self._write(changes[start : start + ENCODE_SLICE])
        return failures

    async def destroy(self, name: str) -> None:
        """Destroy the set, if it exists. Raises KernelError EBUSY while a rule or another set refers to it."""
        refused = await self.netlink.transact([set_message(CMD_DESTROY, 0, set_name(name))])
        if IPSET_ERR_BUSY in refused.values():
            sentence = f"cannot destroy set {name}: a rule or another set refers to it; remove that first"
            raise KernelError(sentence, errno=errno.EBUSY)
        raise_refusal(refused, f"destroy set {name}", "trying later", {errno.ENOENT})

    async def swap(self, name: str, other: str) -> None:
        """Let two sets of one type change names in one step: rules that look into the one look into the other then.

        KernelError ENOENT without the first set; EBUSY while a program lists one of them.
        """
        message = set_message(CMD_SWAP, 0, set_name(name), text(ATTR_SETNAME2, other))
        raise_refusal(await self.netlink.transact([message]), f"swap the sets {name} and {other}", "trying later")

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
                messages.append(message(NFNL_SUBSYS_IPSET << 8 | command, 0, _entry_head(change.set) + entry))
                sent.append(change)
        refused = await self.netlink.transact(messages)
        return failures + [Failure(sent[index], number) for index, number in refused.items()]

    async def _newest_revision(self, definition: SetDefinition) -> int:
        """The newest revision that the kernel has of the set type. The kernel loads the type's module to answer."""
        type_and_family = text(ATTR_TYPENAME, definition.type), u8(ATTR_FAMILY, definition.family)
        query = set_message(CMD_TYPE, 0, *type_and_family, family=definition.family)
        try:
            return only(await self.netlink.request(query, parse_type))
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


def set_message(command: int, flags: int, *parts: bytes, family: int = AF_INET) -> bytes:
    protocol = u8(ATTR_PROTOCOL, PROTOCOL_VERSION)
    return nfnetlink_message(NFNL_SUBSYS_IPSET, command, flags, family, protocol, *parts)


@lru_cache(64)
def _entry_head(name: str) -> bytes:
    return NFNETLINK_HEADER.pack(AF_INET, 0, 0) + u8(ATTR_PROTOCOL, PROTOCOL_VERSION) + set_name(name)


def set_name(name: str) -> bytes:
    """The attribute that names the set."""
    return text(ATTR_SETNAME, name)


def encode_create(definition: SetDefinition, revision: int) -> bytes:
    """The attributes that define a hash set, in a revision of its type."""
    sizes = be32(CREATE_HASHSIZE | NLA_F_NET_BYTEORDER, definition.hashsize)
    sizes += be32(CREATE_MAXELEM | NLA_F_NET_BYTEORDER, definition.maxelem)
    kind = text(ATTR_TYPENAME, definition.type) + u8(ATTR_REVISION, revision) + u8(ATTR_FAMILY, definition.family)
    return set_name(definition.name) + kind + nested(ATTR_DATA, sizes)


def parse_type(payload: bytes) -> int:
    """The newest revision of a set type, in the answer to CMD_TYPE."""
    return attributes(payload, NFNETLINK_HEADER.size)[ATTR_REVISION][0]


def encode_list_flags(flags: int) -> bytes:
    """The attribute that says what a listing contains."""
    return be32(ATTR_FLAGS | NLA_F_NET_BYTEORDER, flags)


def encode_entry(words: tuple[str, ...], element: Element) -> bytes:
    """One element as CMD_ADD and CMD_DEL take it; `words` are those of the set's type ("ip", "port", ...).

    Raises ValueError if the element does not fit the type.
    """
    fields = iter(element)
    parts: list[bytes] = []
    address_kinds = iter(ADDRESS_KINDS)
    does_fit = False
    try:
        for word in words:
            if word == "port":
                parts += [u8(ENTRY_PROTO, int(next(fields))), be16(ENTRY_PORT | NLA_F_NET_BYTEORDER, int(next(fields)))]
            else:
                address, _, prefix = str(next(fields)).partition("/")
                kind, prefix_kind = next(address_kinds)
                parts.append(_encode_address(kind, address))
                if prefix:
                    parts.append(u8(prefix_kind, int(prefix)))
        does_fit = next(fields, None) is None
    except (StopIteration, OSError, OverflowError, struct.error):
        pass
    if not does_fit:
        raise ValueError(f"element {element} does not fit a set of {','.join(words)}")
    return nested(ATTR_DATA, *parts)


def parse_name(payload: bytes) -> str:
    """The name of the set in an answer."""
    return to_text(attributes(payload, NFNETLINK_HEADER.size)[ATTR_SETNAME])


def parse_definition(payload: bytes) -> SetDefinition | None:
    """The definition in a listing's header; None if it has none. A missing size is 0."""
    found = attributes(payload, NFNETLINK_HEADER.size)
    if ATTR_TYPENAME not in found:
        return None
    sizes = attributes(found.get(ATTR_DATA, b""))
    return SetDefinition(
        to_text(found[ATTR_SETNAME]),
        to_text(found[ATTR_TYPENAME]),
        found[ATTR_FAMILY][0],
        int.from_bytes(sizes.get(CREATE_HASHSIZE, b""), "big"),
        int.from_bytes(sizes.get(CREATE_MAXELEM, b""), "big"),
    )


def parse_size(payload: bytes) -> int:
    """How many elements a set has, from a listing's header (IPSET_ATTR_ELEMENTS, since Linux 4.10); -1 if unknown."""
    header = attributes(attributes(payload, NFNETLINK_HEADER.size).get(ATTR_DATA, b""))
    return int.from_bytes(header[HEADER_ELEMENTS], "big") if HEADER_ELEMENTS in header else -1


def parse_elements(words: tuple[str, ...], payload: bytes) -> list[Element]:
    """The elements in one part of a listing."""
    found = attributes(payload, NFNETLINK_HEADER.size)
    entries = iterate_attributes(found.get(ATTR_ADT, b""))
    return [tuple(_fields(words, attributes(entry))) for kind, entry in entries if kind == ATTR_DATA]


def _fields(words: tuple[str, ...], entry: dict[int, bytes]) -> Iterator[str | int]:
    address_kinds = iter(ADDRESS_KINDS)
    for word in words:
        if word == "port":
            if ENTRY_PROTO in entry:  # a bitmap of ports has no protocol
                yield entry[ENTRY_PROTO][0]
            yield to_be16(entry[ENTRY_PORT])
            continue
        kind, prefix_kind = next(address_kinds)
        address = unpack_address(entry[kind][4:])  # behind the header of the one attribute inside
        if word == "net":
            prefix = entry[prefix_kind][0] if prefix_kind in entry else (128 if ":" in address else 32)
            address = f"{address}/{prefix}"
        yield address


def _encode_address(kind: int, address: str) -> bytes:
    if ":" in address:
        packed = inet_pton(AF_INET6, address)
        return _ADDRESS6.pack(24, kind | NLA_F_NESTED, 20, IPADDR_IPV6 | NLA_F_NET_BYTEORDER, packed)
    return _ADDRESS4.pack(12, kind | NLA_F_NESTED, 8, IPADDR_IPV4 | NLA_F_NET_BYTEORDER, inet_pton(AF_INET, address))
