"""pyroute2 reads kroute's requests about routes, and kroute parses its answers (struct rtmsg)."""

import socket
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST
from pyroute2.netlink.rtnl import (
    RTM_DELROUTE,
    RTM_GETROUTE,
    RTM_NEWROUTE,
    rt_proto,
    rt_scope,
    rt_type,
)
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from kroute.kernel.net.monitor import Monitor, RouteEvent
from kroute.kernel.net.routes import (
    LocalRoute,
    RouteLookup,
    Routes,
    Way,
    delete_kernel_route,
    delete_route,
    parse_route,
    set_route,
)
from tests.unit.kernel.witness import (
    FAMILIES,
    Netlink,
    Reading,
    addresses,
    any_address,
    bits_of,
    family_of,
    indexes,
    interfaces,
    names,
    pairs,
    read,
    u32s,
    witnessed,
    write,
    write_datagram,
)

RT_TABLE_LOCAL = 255
LOCAL = rt_type["local"]
IP6_RT_PRIO_USER = 1024
EMPTY = dict.fromkeys(("family", "dst_len", "src_len", "tos", "table", "proto", "scope", "type", "flags"), 0)


def local(address: str, index: int, **fields: int) -> dict[str, Any]:
    """Return a route to one address in table local."""
    named = {"family": family_of(address), "dst_len": bits_of(address), "table": RT_TABLE_LOCAL, "type": LOCAL}
    return EMPTY | named | fields | {"RTA_DST": address, "RTA_OIF": index}


def ours(address: str, index: int, source: str | None) -> dict[str, Any]:
    """Return kroute's route: IPv4's is like the kernel's own, IPv6's has another protocol and the kernel's metric."""
    if ":" in address:
        wanted = local(address, index, proto=rt_proto["static"], scope=rt_scope["universe"])
        wanted["RTA_PRIORITY"] = IP6_RT_PRIO_USER
    else:
        wanted = local(address, index, proto=rt_proto["kernel"], scope=rt_scope["host"])
    return wanted if source is None else wanted | {"RTA_PREFSRC": source}


@witnessed
@given(indexes, pairs())
def test_our_route_is_sent_with_its_source_and_told_from_the_kernels(index: int, both: tuple[str, str]) -> None:
    address, source = both
    create = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE
    made = Reading(RTM_NEWROUTE, create, ours(address, index, source))
    assert read(rtmsg, set_route(index, address, source)) == made
    whoever_made_it = {"proto": rt_proto["unspec"]}
    deleted = Reading(RTM_DELROUTE, NLM_F_REQUEST, ours(address, index, source) | whoever_made_it)
    assert read(rtmsg, delete_route(index, address, source)) == deleted
    any_source = Reading(RTM_DELROUTE, NLM_F_REQUEST, ours(address, index, None) | whoever_made_it)
    assert read(rtmsg, delete_route(index, address, None)) == any_source


@witnessed
@given(indexes, addresses(socket.AF_INET6))
def test_the_kernels_own_ipv6_route_is_named_by_its_protocol(index: int, address: str) -> None:
    named = local(address, index, proto=rt_proto["kernel"], scope=rt_scope["nowhere"])
    deletion = read(rtmsg, delete_kernel_route(index, address))
    assert deletion == Reading(RTM_DELROUTE, NLM_F_REQUEST, named)


@witnessed
@given(indexes, pairs(), st.booleans(), st.none() | u32s, st.sampled_from(["kernel", "boot", "static"]))
def test_a_local_route_is_read_with_interface_source_and_metric(
    index: int, both: tuple[str, str], has_source: bool, metric: int | None, proto: str
) -> None:
    address, source = both
    told = local(address, index, proto=rt_proto[proto], scope=rt_scope["host"]) | {"RTA_TABLE": RT_TABLE_LOCAL}
    told |= {"RTA_PREFSRC": source} if has_source else {}
    told |= {"RTA_PRIORITY": metric} if metric is not None else {}
    found = parse_route(write(rtmsg, told))
    assert found == (index, LocalRoute(address, source if has_source else None, metric or 0))


@witnessed
@given(
    indexes,
    any_address(),
    st.sampled_from([{"table": 254}, {"type": rt_type["broadcast"]}, {"dst_len": 24}, {"dst_len": 0}]),
)
def test_what_is_no_route_to_one_local_address_is_left_out(index: int, address: str, other: dict[str, int]) -> None:
    assert parse_route(write(rtmsg, local(address, index) | other)) is None


@witnessed
@given(names, indexes, addresses(socket.AF_INET), addresses(socket.AF_INET6))
async def test_table_local_is_asked_for_by_family_and_interface(name: str, index: int, ipv4: str, ipv6: str) -> None:
    routes = Routes()
    answers = [[write(rtmsg, local(address, each)) for each in (index, index + 1)] for address in (ipv4, ipv6)]
    routes.netlink = netlink = Netlink(*answers)
    with interfaces({name: index}):
        found = await routes.read(name)
    assert found == {address: [LocalRoute(address, None, 0)] for address in (ipv4, ipv6)}
    wanted = EMPTY | {"table": RT_TABLE_LOCAL, "type": LOCAL, "RTA_TABLE": RT_TABLE_LOCAL, "RTA_OIF": index}
    assert [read(rtmsg, message) for message in netlink.sent] == [
        Reading(RTM_GETROUTE, NLM_F_REQUEST | NLM_F_DUMP, wanted | {"family": family}) for family in FAMILIES
    ]


@witnessed
@given(st.sampled_from([RTM_NEWROUTE, RTM_DELROUTE]), indexes, pairs(), u32s)
async def test_a_local_route_that_comes_or_goes_is_an_event(
    kind: int, index: int, both: tuple[str, str], metric: int
) -> None:
    address, source = both
    told = local(address, index) | {"RTA_PREFSRC": source, "RTA_PRIORITY": metric}
    datagram = write_datagram(rtmsg, told | {"table": 254}, kind) + write_datagram(rtmsg, told, kind)
    monitor = Monitor()
    monitor._names, monitor.netlink = {index: "a"}, Netlink(datagrams=[datagram])
    assert await monitor.next() == [RouteEvent(kind == RTM_DELROUTE, "a", LocalRoute(address, source, metric))]


@witnessed
@given(names, indexes, pairs(), st.sampled_from(["local", "unicast"]))
async def test_a_way_is_asked_for_by_its_end(name: str, index: int, both: tuple[str, str], kind: str) -> None:
    address, source = both
    told = local(address, index, type=rt_type[kind]) | {"RTA_PREFSRC": source}
    lookup = RouteLookup()
    lookup.netlink = netlink = Netlink([write(rtmsg, told)])
    with interfaces({name: index}):
        assert await lookup.towards(address) == Way(kind == "local", name, source)
    wanted = EMPTY | {"family": family_of(address), "dst_len": bits_of(address), "RTA_DST": address}
    assert [read(rtmsg, message) for message in netlink.sent] == [
        Reading(RTM_GETROUTE, NLM_F_REQUEST, wanted),
    ]
