"""IPVS changes as bytes, and /proc/net/ip_vs as objects."""

import asyncio
import struct

import pytest

from kroute.kernel.generic import GENERIC_HEADER
from kroute.kernel.ipvs import (
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
from kroute.kernel.ipvs_messages import encode_change, encode_timeouts, parse_virtual_server
from kroute.kernel.ipvs_table import parse_table
from kroute.kernel.netlink_message import HEADER, attributes, iterate_attributes

KEY = (6, "10.0.0.1", 80)
KEY6 = (17, "fd00::1", 53)

TABLE = """\
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
    """Length, command and the nested attributes of a message."""
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
    sent = list(iterate_attributes(encoded, HEADER.size + GENERIC_HEADER.size))
    assert sent == [(4, struct.pack("=I", 600)), (6, struct.pack("=I", 100))]


async def test_the_table_is_parsed() -> None:
    table = await parse_table(TABLE)
    assert table.virtual_servers == {
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


async def test_what_the_table_does_not_tell_is_named() -> None:
    assert (await parse_table(TABLE)).incomplete == {(6, "fd00::2", 80), (6, "10.0.0.2", 80), (6, "10.0.0.1", 80)}


async def test_an_empty_table_has_only_its_heading() -> None:
    assert (await parse_table("\n".join(TABLE.splitlines()[:3]))).virtual_servers == {}


async def test_other_tasks_run_while_a_long_table_is_parsed() -> None:
    lines = TABLE.splitlines()[:3]
    for number in range(10_000):
        lines += [f"TCP  0A{number:06X}:0050 rr  ", f"  -> 0B{number:06X}:1F90      Masq    1      0          0"]
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        counter = group.create_task(count_turns())
        table = await parse_table("\n".join(lines))
        counter.cancel()
    assert len(table.virtual_servers) == 10_000
    assert turns >= 10


def test_changes_are_sentences() -> None:
    assert str(AddVirtualServer(KEY6, VirtualServerOptions("mh"))) == (
        "add virtual server UDP [fd00::1]:53 (scheduler mh)"
    )
    assert str(SetRealServer(KEY, ("10.1.0.1", 8080), 0)) == (
        "set weight 0 of real server 10.1.0.1:8080 of TCP 10.0.0.1:80"
    )
