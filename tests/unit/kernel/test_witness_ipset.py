"""pyroute2 reads kroute's ip_set requests, and kroute parses its answers (include/uapi/linux/netfilter/ipset/ip_set.h).

The kernel refuses addresses, ports and sizes without the flag NLA_F_NET_BYTEORDER (ip_set_attr_netorder), so these
tests check the flag too. pyroute2 0.9.7 also sets it on protocols and prefix lengths, single bytes for which the kernel
does not require it.
"""

import socket
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_IPSET, ipset

from kroute.kernel.ipset import AddEntry, DeleteEntry, Element, Ipset, SetDefinition, parse_elements
from tests.unit.kernel.witness import (
    Netlink,
    Reading,
    addresses,
    families,
    family_of,
    ports,
    read,
    u8s,
    u32s,
    witnessed,
    write,
)

IPSET_PROTOCOL_MIN = 6
"""The protocol version that every kernel speaks."""
TYPES = ("hash:ip", "hash:net", "hash:ip,port", "hash:ip,port,ip", "hash:ip,port,net")
IN_NETWORK_ORDER = {"IPSET_ATTR_PORT_FROM", "IPSET_ATTR_IPADDR_IPV4", "IPSET_ATTR_IPADDR_IPV6"}

set_names = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=31)
"""At most 31 characters: IPSET_MAXNAMELEN is 32, with the NUL."""
definitions = st.builds(SetDefinition, set_names, st.sampled_from(TYPES), families, u32s, u32s)


def networks(family: int) -> st.SearchStrategy[str]:
    lengths = st.integers(0, 32 if family == socket.AF_INET else 128)
    return st.tuples(addresses(family), lengths).map(lambda drawn: f"{drawn[0]}/{drawn[1]}")


def elements(type_name: str, family: int) -> st.SearchStrategy[Element]:
    parts = {"ip": (addresses(family),), "net": (networks(family),), "port": (u8s, ports)}
    return st.tuples(*(part for word in type_name.partition(":")[2].split(",") for part in parts[word]))


typed_elements = st.tuples(st.sampled_from(TYPES), families).flatmap(
    lambda drawn: st.tuples(st.just(drawn[0]), st.lists(elements(*drawn), min_size=1, max_size=4))
)


def address(text: str) -> dict[str, str]:
    return {f"IPSET_ATTR_IPADDR_{'IPV6' if ':' in text else 'IPV4'}": text}


def entry(type_name: str, element: Element) -> dict[str, Any]:
    """Return an element's attributes: the first address, protocol and port, the second address."""
    words, fields = type_name.partition(":")[2].split(","), iter(element)
    kinds = iter([("IPSET_ATTR_IP_FROM", "IPSET_ATTR_CIDR"), ("IPSET_ATTR_IP2", "IPSET_ATTR_CIDR2")])
    attributes: dict[str, Any] = {}
    for word in words:
        if word == "port":
            attributes |= {"IPSET_ATTR_PROTO": next(fields), "IPSET_ATTR_PORT_FROM": next(fields)}
            continue
        kind, prefix_kind = next(kinds)
        text, _, prefix = str(next(fields)).partition("/")
        attributes |= {kind: address(text)} | ({prefix_kind: int(prefix)} if prefix else {})
    return attributes


def header(family: int = socket.AF_INET, **attributes: Any) -> dict[str, Any]:
    """Return the fields with which every message begins."""
    return {"nfgen_family": family, "version": 0, "res_id": 0, "IPSET_ATTR_PROTOCOL": IPSET_PROTOCOL_MIN} | {
        f"IPSET_ATTR_{name}": value for name, value in attributes.items()
    }


def answer(command: int, **attributes: Any) -> bytes:
    return write(ipset.ipset_msg, header(**attributes), NFNL_SUBSYS_IPSET << 8 | command)


def told(definition: SetDefinition) -> bytes:
    """Return the head of a listing."""
    sizes = {"IPSET_ATTR_HASHSIZE": definition.hashsize, "IPSET_ATTR_MAXELEM": definition.maxelem}
    more = {"IPSET_ATTR_REFERENCES": 1, "IPSET_ATTR_MEMSIZE": 2}
    return answer(
        ipset.IPSET_CMD_LIST,
        SETNAME=definition.name,
        TYPENAME=definition.type,
        REVISION=4,
        FAMILY=definition.family,
        DATA=sizes | more,
    )


def client(*answers: list[bytes]) -> tuple[Ipset, Netlink]:
    sets, netlink = Ipset(), Netlink(*answers)
    sets.netlink = netlink
    return sets, netlink


def requests(netlink: Netlink) -> list[Reading]:
    return [read(ipset.ipset_msg, message) for message in netlink.sent]


def request(command: int, flags: int, contents: dict[str, Any], *network_order: str) -> Reading:
    kind = NFNL_SUBSYS_IPSET << 8 | command
    return Reading(kind, NLM_F_REQUEST | flags, contents, frozenset(network_order))


@witnessed
@given(definitions, u8s)
async def test_a_set_is_made_of_the_newest_revision(definition: SetDefinition, revision: int) -> None:
    family = {"family": definition.family, "FAMILY": definition.family}
    sets, netlink = client([answer(ipset.IPSET_CMD_TYPE, **family, TYPENAME=definition.type, REVISION=revision)])
    assert await sets.create(definition)
    query = header(**family, TYPENAME=definition.type)
    sizes = {"IPSET_ATTR_HASHSIZE": definition.hashsize, "IPSET_ATTR_MAXELEM": definition.maxelem}
    made = header(**family, SETNAME=definition.name, TYPENAME=definition.type, REVISION=revision, DATA=sizes)
    assert requests(netlink) == [
        request(ipset.IPSET_CMD_TYPE, 0, query),
        request(ipset.IPSET_CMD_CREATE, NLM_F_CREATE | NLM_F_EXCL, made, *sizes),
    ]


@witnessed
@given(definitions)
async def test_a_definition_is_asked_for_by_name_and_read(definition: SetDefinition) -> None:
    sets, netlink = client([told(definition)])
    assert await sets.definition(definition.name) == definition
    query = header(SETNAME=definition.name, FLAGS=ipset.IPSET_FLAG_LIST_HEADER)
    assert requests(netlink) == [request(ipset.IPSET_CMD_LIST, NLM_F_DUMP, query, "IPSET_ATTR_FLAGS")]


@witnessed
@given(st.sets(set_names, max_size=3))
async def test_the_names_of_all_sets_are_read(names: set[str]) -> None:
    sets, netlink = client([answer(ipset.IPSET_CMD_LIST, SETNAME=name) for name in names])
    assert await sets.names() == names
    query = header(FLAGS=ipset.IPSET_FLAG_LIST_SETNAME)
    assert requests(netlink) == [request(ipset.IPSET_CMD_LIST, NLM_F_DUMP, query, "IPSET_ATTR_FLAGS")]


@witnessed
@given(set_names)
async def test_a_set_is_destroyed_by_name(name: str) -> None:
    sets, netlink = client()
    await sets.destroy(name)
    assert requests(netlink) == [request(ipset.IPSET_CMD_DESTROY, 0, header(SETNAME=name))]


@witnessed
@given(set_names, typed_elements)
async def test_elements_are_put_in_and_taken_out(name: str, drawn: tuple[str, list[Element]]) -> None:
    type_name, wanted = drawn
    sets, netlink = client([told(SetDefinition(name, type_name))])
    assert await sets.write([change(name, element) for element in wanted for change in (AddEntry, DeleteEntry)]) == []
    _, *written = requests(netlink)
    assert [each[:3] for each in written] == [
        request(command, 0, header(SETNAME=name, DATA=entry(type_name, element)))[:3]
        for element in wanted
        for command in (ipset.IPSET_CMD_ADD, ipset.IPSET_CMD_DEL)
    ]
    for each in written:
        data = each.contents["IPSET_ATTR_DATA"]
        named = {*data, *(inner for value in data.values() if isinstance(value, dict) for inner in value)}
        assert each.network_order == IN_NETWORK_ORDER & named


@witnessed
@given(set_names, typed_elements)
async def test_the_elements_of_a_set_are_read(name: str, drawn: tuple[str, list[Element]]) -> None:
    type_name, there = drawn
    more = {"IPSET_ATTR_TIMEOUT": 60}
    entries = [entry(type_name, element) | more for element in there]
    listing = answer(ipset.IPSET_CMD_LIST, SETNAME=name, TYPENAME=type_name, ADT={"IPSET_ATTR_DATA": entries})
    sets, netlink = client([told(SetDefinition(name, type_name))], [listing])
    assert await sets.read(name) == set(there)
    query = request(ipset.IPSET_CMD_LIST, NLM_F_DUMP, header(SETNAME=name))
    assert requests(netlink)[1:] == [query]


@witnessed
@given(families.flatmap(addresses))
def test_a_network_without_a_length_is_one_address(only: str) -> None:
    entries = [entry("hash:ip", (only,))]
    listing = answer(ipset.IPSET_CMD_LIST, SETNAME="S", TYPENAME="hash:net", ADT={"IPSET_ATTR_DATA": entries})
    length = 32 if family_of(only) == socket.AF_INET else 128
    assert parse_elements(("net",), listing) == [(f"{only}/{length}",)]


@witnessed
@given(ports)
def test_a_bitmap_of_ports_has_no_protocol(port: int) -> None:
    entries = [{"IPSET_ATTR_PORT_FROM": port}]
    listing = answer(ipset.IPSET_CMD_LIST, SETNAME="S", TYPENAME="bitmap:port", ADT={"IPSET_ATTR_DATA": entries})
    assert parse_elements(("port",), listing) == [(port,)]
