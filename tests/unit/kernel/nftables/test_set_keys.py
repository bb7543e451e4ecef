"""Keys of sets, without a kernel."""

import socket

import pytest

from kroute.kernel.nftables.messages import Key, Message, decode_elements, encode_element, parse_keys
from kroute.kernel.nftables.messages import elements_message as encode_message
from kroute.kernel.nftables.objects import Element, NftSet, Table
from kroute.kernel.nftables.set_keys import encode_key, flags_of, key_length, key_type, parts_of

T4, T6 = Table(socket.AF_INET, "kroute"), Table(socket.AF_INET6, "kroute")
NETWORKS = NftSet("pod-network", ("net",))
PARTS = [
    ("ip",),
    ("ip", "port"),
    ("ip", "port", "ip"),
    ("ip", "port", "net"),
    ("net",),
    ("net", "ports"),
    ("ip", "jump"),
]


@pytest.mark.parametrize("parts", PARTS, ids="-".join)
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_parts_are_read_from_types_and_flags(family: int, parts: tuple[str, ...]) -> None:
    assert parts_of(family, key_type(family, parts), flags_of(parts)) == parts


def test_keys_have_the_types_of_nft() -> None:
    assert key_type(socket.AF_INET, ("ip", "port")) == 0x730D  # what nft 1.0.6 writes
    assert key_type(socket.AF_INET, ("ip", "port", "net")) == 0x730D1C7
    assert key_length(socket.AF_INET6, ("ip", "port", "ip")) == 40


@pytest.mark.parametrize(("number", "flags"), [(7, 0x10), (7, 0x84), (13, 0), (0, 0), (8, 0), (0x730D, 0x4)])
def test_a_set_of_another_kind_has_no_parts_of_ours(number: int, flags: int) -> None:
    assert parts_of(socket.AF_INET, number, flags) not in PARTS


@pytest.mark.parametrize(
    "element",
    [
        ("10.0.0.1",),
        ("10.0.0.1", 6),
        ("10.0.0.1", 6, 80, 81),
        ("fd00::1", 6, 80),
        ("10.0.0.1", 6, 65536),
        ("10.0.0.1", 256, 80),
        ("10.0.0.1/32", 6, 80),
        (),
    ],
    ids=str,
)
def test_an_element_that_does_not_fit_is_refused(element: Element) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_key(socket.AF_INET, ("ip", "port"), element)


@pytest.mark.parametrize(
    ("table", "networks"),
    [
        (T4, ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/23", "192.168.0.1/32"]),
        (T4, ["0.0.0.0/1", "128.0.0.0/1"]),
        (T4, ["0.0.0.0/0"]),
        (T6, ["::/0"]),
        (T6, ["fd00::/64", "fd00:0:0:1::/64", "ff00::/8"]),
    ],
    ids=str,
)
def test_networks_alone_side_by_side_stay_apart(table: Table, networks: list[str]) -> None:
    encoded = [encode_element(table.family, ("net",), (it,)) for it in reversed(networks)]
    listed = parse_keys(encode_message(Message.NEWSETELEM, table, "pod-network", encoded)[16:])
    assert list(decode_elements(table, NETWORKS, listed)) == [(it,) for it in networks]


def test_an_end_before_the_first_network_is_none() -> None:
    listed = [
        Key(bytes(4), is_end=True),
        Key(b"\x0a\0\0\0"),
        Key(b"\x0b\0\0\0", is_end=True),
    ]
    assert list(decode_elements(T4, NETWORKS, listed)) == [("10.0.0.0/8",)]


def test_a_range_that_is_no_network_is_the_networks_that_it_consists_of() -> None:
    listed = [Key(b"\x0a\0\0\3"), Key(b"\x0a\0\0\6", is_end=True)]
    assert list(decode_elements(T4, NETWORKS, listed)) == [("10.0.0.3/32",), ("10.0.0.4/31",)]


@pytest.mark.parametrize(
    ("table", "element", "ends"),
    [
        (T4, ("10.0.0.1", 6, 80, "10.2.0.0/15"), "0a020000 0a03ffff"),
        (T4, ("10.0.0.1", 6, 80, "10.2.0.1/32"), "0a020001 0a020001"),
        (T4, ("10.0.0.1", 6, 80, "0.0.0.0/0"), "00000000 ffffffff"),
        (T6, ("fd00::1", 6, 80, "::102:300/120"), f"{0x1020300:032x} {0x10203FF:032x}"),
        (T4, ("10.0.0.1", 6, 80, "10.0.0.1-10.0.0.2"), "0a000001 0a000002"),
        (T4, ("10.0.0.1", 6, 80, "10.0.0.3-10.0.0.4"), "0a000003 0a000004"),
        (T4, ("10.0.0.1", 6, 80, "10.0.0.4-10.0.0.3"), "0a000004 0a000003"),
    ],
    ids=str,
)
def test_a_network_behind_other_parts_is_its_first_and_last_address(table: Table, element: Element, ends: str) -> None:
    """Another program may add two addresses that are no network's. They must have a name by which they are deleted."""
    ranges = NftSet("source-network", ("ip", "port", "net"))
    key, last = encode_key(table.family, ranges.parts, element)
    assert (key[-len(bytes.fromhex(ends)) :], last) == (bytes.fromhex(ends), key)
    assert list(decode_elements(table, ranges, [Key(key)])) == [element]


@pytest.mark.parametrize("network", ["10.0.0.1/24", "fd00::/64", "10.0.0.0/33", "", "10.0.0.0-fd00::"])
def test_what_is_no_network_of_the_family_does_not_fit(network: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode_key(socket.AF_INET, ("ip", "port", "net"), ("10.0.0.1", 6, 80, network))
