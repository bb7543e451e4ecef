"""IPVS changes as bytes, and /proc/net/ip_vs as objects."""

import struct
from collections.abc import Iterator

import pytest

from kroute.kernel.ipvs.messages import (
    encode_change,
    encode_real_server_dump,
    encode_timeouts,
    parse_real_server,
    parse_virtual_server,
)
from kroute.kernel.ipvs.objects import (
    AddRealServer,
    AddVirtualServer,
    DeleteRealServer,
    DeleteVirtualServer,
    IpvsChange,
    RealServerState,
    SetRealServer,
    SetVirtualServer,
    VirtualServerOptions,
    VirtualServerState,
)
from kroute.kernel.ipvs.table import parse_table
from kroute.kernel.netlink.client import GENERIC_HEADER
from kroute.kernel.netlink.message import HEADER, attributes, iterate_attributes, nested, u32

KEY = (6, "10.0.0.1", 80)
KEY6 = (17, "fd00::1", 53)

TABLE = b"""\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  [fd00:0000:0000:0000:0000:0000:0000:0002]:0050 rr persistent 25000 40000000
  -> [fd01:0000:0000:0000:0000:0000:0000:0001]:1F90      Masq    1      2          3         \n\
TCP  0A000002:0050 rr  persistent 25000 FFFFFF00
  -> 0A010101:1F90      Masq    1      0          0         \n\
  -> 0A010102:1F90      Route   0      0          7         \n\
FWM  0000004D wlc \n\
  -> 0A010103:0000      Masq    1      0          0         \n\
TCP  0A000001:0050 mh  \n\
UDP  0A000002:0050 wlc ops \n\
SCTP 0A000003:0007 lc  \n\
"""


def parts(encoded: bytes) -> tuple[int, int, dict[int, dict[int, bytes]]]:
    """Return the length, command and nested attributes of a message."""
    length, _, _, _, _ = HEADER.unpack_from(encoded)
    command, _, _ = GENERIC_HEADER.unpack_from(encoded, HEADER.size)
    body = attributes(encoded, HEADER.size + GENERIC_HEADER.size)
    return length, command, {kind: attributes(contents) for kind, contents in body.items()}


def test_a_new_virtual_server_as_the_kernel_wants_it() -> None:
    encoded = encode_change(31, AddVirtualServer(KEY, VirtualServerOptions("mh", 0x10, 600, 24)))
    length, command, body = parts(encoded)
    assert (length, command, list(body)) == (len(encoded), 1, [1])
    assert body[1] == {
        1: struct.pack("=H", 2),
        2: struct.pack("=H", 6),
        3: bytes([10, 0, 0, 1]).ljust(16, b"\0"),
        4: struct.pack("!H", 80),
        6: b"mh\0",
        7: struct.pack("=II", 0x11, 0xFFFFFFFF),
        8: struct.pack("=I", 600),
        9: bytes([255, 255, 255, 0]),
    }


def test_an_ipv6_netmask_is_a_prefix_length() -> None:
    _, _, body = parts(encode_change(31, AddVirtualServer(KEY6, VirtualServerOptions("rr", 0, 600, 64))))
    assert body[1][9] == struct.pack("=I", 64)


@pytest.mark.parametrize(("key", "mask"), [(KEY, b"\xff\xff\xff\xff"), (KEY6, struct.pack("=I", 128))], ids=str)
def test_without_persistence_the_netmask_is_the_whole_address(key: tuple[int, str, int], mask: bytes) -> None:
    _, _, body = parts(encode_change(31, SetVirtualServer(key, VirtualServerOptions())))
    assert body[1][7] == struct.pack("=II", 0, 0xFFFFFFFF)
    assert body[1][9] == mask


def test_a_real_server_is_masqueraded() -> None:
    _, command, body = parts(encode_change(31, AddRealServer(KEY, ("10.1.0.1", 8080), 3)))
    assert command == 5
    assert set(body[1]) == {1, 2, 3, 4}
    assert body[2] == {
        1: bytes([10, 1, 0, 1]).ljust(16, b"\0"),
        2: struct.pack("!H", 8080),
        3: struct.pack("=I", 0),
        4: struct.pack("=I", 3),
        5: struct.pack("=I", 0),
        6: struct.pack("=I", 0),
    }


@pytest.mark.parametrize(
    ("change", "command"),
    [
        (SetVirtualServer(KEY, VirtualServerOptions()), 2),
        (DeleteVirtualServer(KEY), 3),
        (SetRealServer(KEY, ("10.1.0.1", 1), 0), 6),
        (DeleteRealServer(KEY, ("10.1.0.1", 1)), 7),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_change_has_its_command(change: IpvsChange, command: int) -> None:
    encoded = encode_change(31, change)
    assert HEADER.unpack_from(encoded)[:3] == (len(encoded), 31, 1)
    assert parts(encoded)[1] == command


@pytest.mark.parametrize("key", [KEY, KEY6], ids=str)
@pytest.mark.parametrize(
    "options",
    [VirtualServerOptions(), VirtualServerOptions("sh", 0x18, 10800, 24), VirtualServerOptions("mh", 0x10)],
    ids=str,
)
def test_what_is_encoded_is_decoded(key: tuple[int, str, int], options: VirtualServerOptions) -> None:
    encoded = encode_change(31, AddVirtualServer(key, options))
    assert parse_virtual_server(encoded[HEADER.size :]) == (key, options)


def test_timeouts_of_zero_are_not_sent() -> None:
    encoded = encode_timeouts(31, 600, 0, 100)
    sent = list(iterate_attributes(encoded[HEADER.size + GENERIC_HEADER.size :]))
    assert sent == [(4, struct.pack("=I", 600)), (6, struct.pack("=I", 100))]


def test_the_table_is_parsed() -> None:
    [sections] = parse_table([TABLE])
    assert {section.key: section.state for section in sections} == {
        (6, "fd00::2", 80): VirtualServerState(
            VirtualServerOptions("rr"), {("fd01::1", 8080): RealServerState(1, 2, 3, "Masq")}
        ),
        (6, "10.0.0.2", 80): VirtualServerState(
            VirtualServerOptions("rr"),
            {
                ("10.1.1.1", 8080): RealServerState(1, 0, 0, "Masq"),
                ("10.1.1.2", 8080): RealServerState(0, 0, 7, "Route"),
            },
        ),
        (6, "10.0.0.1", 80): VirtualServerState(VirtualServerOptions("mh"), {}),
        (17, "10.0.0.2", 80): VirtualServerState(VirtualServerOptions("wlc", 4), {}),
        (132, "10.0.0.3", 7): VirtualServerState(VirtualServerOptions("lc"), {}),
    }


def test_what_the_table_does_not_tell_is_named() -> None:
    [sections] = parse_table([TABLE])
    incomplete = {section.key for section in sections if not section.is_complete}
    assert incomplete == {(6, "fd00::2", 80), (6, "10.0.0.2", 80), (6, "10.0.0.1", 80)}


def test_an_empty_table_has_only_its_heading() -> None:
    assert [section for sections in parse_table(TABLE.splitlines(True)[:3]) for section in sections] == []
    assert list(parse_table([])) == []


def in_pieces(lines: list[bytes], size: int) -> Iterator[bytes]:
    """Split the lines as a file does that is read `size` bytes at a time."""
    text = b"\n".join(lines) + b"\n"
    return (text[start : start + size] for start in range(0, len(text), size))


@pytest.mark.parametrize("size", [1, 997, 4096, 1 << 16])
def test_wherever_pieces_end_the_table_is_the_same(size: int) -> None:
    [whole] = parse_table([TABLE])
    assert [section for part in parse_table(in_pieces(TABLE.splitlines(), size)) for section in part] == whole


@pytest.mark.parametrize("size", [997, 4096])
def test_a_long_table_comes_in_slices_that_end_between_virtual_servers(size: int) -> None:
    lines = TABLE.splitlines()[:3]
    for number in range(3000):
        lines.append(b"TCP  0A%06X:0050 rr  " % number)
        lines += [b"  -> 0B%06X:%04X      Masq    1      0          0         " % (number, port) for port in range(9)]
    slices = list(parse_table(in_pieces(lines, size)))
    sections = [section for sections in slices for section in sections]
    assert len({section.key for section in sections}) == len(sections) == 3000
    assert {len(section.state.real_servers) for section in sections} == {9}
    assert len(slices) >= 20
    assert max(len(sections) for sections in slices) < 150


def test_a_virtual_server_larger_than_a_slice_stays_whole() -> None:
    lines = TABLE.splitlines()[:3]
    lines.append(b"TCP  0A000001:0050 rr  ")
    lines += [b"  -> 0B000001:%04X      Masq    1      0          0         " % port for port in range(3000)]
    lines.append(b"TCP  0A000002:0050 rr  ")
    sections = [section for part in parse_table(in_pieces(lines, 4096)) for section in part]
    assert [len(section.state.real_servers) for section in sections] == [3000, 0]


@pytest.mark.parametrize(("key", "address"), [(KEY, "10.1.0.1"), (KEY6, "fd01::1")], ids=str)
def test_a_real_server_is_read_with_its_connections(key: tuple[int, str, int], address: str) -> None:
    encoded = encode_change(31, AddRealServer(key, (address, 8080), 5, "Route"))
    dest = attributes(encoded, HEADER.size + GENERIC_HEADER.size)[2]
    answer = GENERIC_HEADER.pack(5, 1, 0) + nested(2, dest + u32(7, 3) + u32(8, 4))
    assert parse_real_server(answer, key) == ((address, 8080), RealServerState(5, 3, 4, "Route"))


def test_a_dump_of_real_servers_names_their_virtual_server() -> None:
    dump, change = encode_real_server_dump(31, KEY), encode_change(31, DeleteVirtualServer(KEY))
    assert parts(dump)[1] == 8
    assert dump[HEADER.size + GENERIC_HEADER.size :] == change[HEADER.size + GENERIC_HEADER.size :]


def test_changes_are_sentences() -> None:
    assert str(AddVirtualServer(KEY6, VirtualServerOptions("mh"))) == (
        "add virtual server UDP [fd00::1]:53 (scheduler mh)"
    )
    assert str(SetRealServer(KEY, ("10.1.0.1", 8080), 0)) == (
        "set weight 0 of real server 10.1.0.1:8080 of TCP 10.0.0.1:80"
    )
