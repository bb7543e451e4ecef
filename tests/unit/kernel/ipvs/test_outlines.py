"""Comparing the outlines of virtual servers: by what is not traffic, and as they are listed."""

from kroute.kernel.ipvs.objects import VirtualServerKey, VirtualServerOptions
from kroute.kernel.ipvs.outlines import Outlines, parse_outline, parse_outline_key
from tests.fakes.ipvs import encode_outline

KEYS: list[VirtualServerKey] = [(6, "10.96.0.1", 80), (17, "10.96.0.2", 53), (132, "10.96.255.3", 65535)]
OPTIONS = VirtualServerOptions("mh", 0x8, 601, 24)
ENTRIES = [encode_outline(key, OPTIONS, at) for at, key in enumerate(KEYS)]
STATISTICS = 48
"""Where they begin in an entry (struct ip_vs_service_entry)."""


def test_they_are_parsed_to_what_was_listed() -> None:
    found = Outlines(b"".join(ENTRIES)).parsed()
    listed = {parse_outline_key(key): parse_outline(outline) for key, outline in found.items()}
    assert listed == {key: (OPTIONS, at) for at, key in enumerate(KEYS)}


def test_firewall_marks_and_unused_space_are_left_out() -> None:
    mark = bytearray(encode_outline((6, "0.0.0.0", 0), OPTIONS, 1))
    assert len(Outlines(b"".join([*ENTRIES, mark, bytes(len(mark))])).parsed()) == len(KEYS)
    assert Outlines().parsed() == {}


def test_every_byte_counts_but_those_of_statistics() -> None:
    same = []
    for at in range(len(ENTRIES[0])):
        changed = bytearray(ENTRIES[1])
        changed[at] ^= 1
        if Outlines(ENTRIES[0] + changed) == Outlines(ENTRIES[0] + ENTRIES[1]):
            same.append(at)
    assert same == list(range(STATISTICS, len(ENTRIES[0])))


def test_another_order_is_another_listing_of_the_same() -> None:
    one, other = Outlines(b"".join(ENTRIES)), Outlines(b"".join(ENTRIES[::-1]))
    assert one != other
    assert one.parsed() == other.parsed()
