"""pyroute2 reads kroute's requests about links, and kroute parses its answers (struct ifinfomsg)."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST
from pyroute2.netlink.rtnl import RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, RTM_SETLINK
from pyroute2.netlink.rtnl.ifinfmsg import IFF_LOWER_UP, IFF_NOARP, IFF_UP, ifinfmsg

from kroute.kernel.net.links import Links, LinkState
from kroute.kernel.net.monitor import LinkEvent, Monitor
from tests.unit.kernel.witness import (
    Netlink,
    Reading,
    indexes,
    interfaces,
    names,
    read,
    u16s,
    u32s,
    witnessed,
    write,
    write_datagram,
)

IN6_ADDR_GEN_MODE_NONE = 1
"""From include/uapi/linux/if_link.h, where the modes are 0 to 3."""
EXCLUSIVE = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL


def header(index: int, flags: int = 0, change: int = 0) -> dict[str, Any]:
    """Return a link's header; `state` is pyroute2's name for IFF_UP."""
    state = "up" if flags & IFF_UP else "down"
    return {"family": 0, "ifi_type": 0, "index": index, "flags": flags, "change": change, "state": state}


def requests(netlink: Netlink) -> list[Reading]:
    return [read(ifinfmsg, message) for message in netlink.sent]


@witnessed
@given(names, indexes)
async def test_a_dummy_is_made_down_told_its_mode_and_set_up(name: str, index: int) -> None:
    links = Links()
    links.netlink = netlink = Netlink()
    with interfaces({name: index}):
        await links.create_dummy(name)
    made = header(0, IFF_NOARP, IFF_NOARP) | {"IFLA_IFNAME": name, "IFLA_LINKINFO": {"IFLA_INFO_KIND": "dummy"}}
    mode = {"AF_INET6": {"IFLA_INET6_ADDR_GEN_MODE": IN6_ADDR_GEN_MODE_NONE}}
    both = IFF_UP | IFF_NOARP
    assert requests(netlink) == [
        Reading(RTM_NEWLINK, EXCLUSIVE, made),
        Reading(RTM_SETLINK, NLM_F_REQUEST, header(index) | {"IFLA_AF_SPEC": mode}),
        Reading(RTM_SETLINK, NLM_F_REQUEST, header(index, both, both)),
    ]


@witnessed
@given(names, indexes)
async def test_a_link_is_deleted_by_its_index(name: str, index: int) -> None:
    links = Links()
    links.netlink = netlink = Netlink()
    with interfaces({name: index}):
        await links.delete(name)
    assert requests(netlink) == [Reading(RTM_DELLINK, NLM_F_REQUEST, header(index))]


@witnessed
@given(names, names, indexes, u32s, u16s, st.none() | st.integers(0, 3))
async def test_a_link_is_asked_for_by_name_and_read_with_kind_flags_and_mode(
    name: str, kind: str, index: int, flags: int, hardware: int, mode: int | None
) -> None:
    told: dict[str, Any] = {"family": 0, "ifi_type": hardware, "index": index, "flags": flags, "change": 0}
    told |= {"IFLA_IFNAME": name, "IFLA_MTU": 1500, "IFLA_LINKINFO": {"IFLA_INFO_KIND": kind}}
    if mode is not None:
        told["IFLA_AF_SPEC"] = {"AF_INET6": {"IFLA_INET6_FLAGS": 1, "IFLA_INET6_ADDR_GEN_MODE": mode}}
    links = Links()
    links.netlink = netlink = Netlink([write(ifinfmsg, told)])
    link_local = mode not in {None, IN6_ADDR_GEN_MODE_NONE}
    state = LinkState(index, kind, bool(flags & IFF_UP), bool(flags & IFF_NOARP), link_local)
    assert await links.read(name) == state
    assert requests(netlink) == [
        Reading(RTM_GETLINK, NLM_F_REQUEST, header(0) | {"IFLA_IFNAME": name}),
    ]


@witnessed
@given(st.sampled_from([RTM_NEWLINK, RTM_DELLINK]), names, indexes, st.sampled_from([0, IFF_UP, IFF_UP | IFF_LOWER_UP]))
async def test_a_link_that_comes_or_goes_is_an_event(kind: int, name: str, index: int, flags: int) -> None:
    told = {"family": 0, "index": index, "flags": flags, "IFLA_IFNAME": name}
    monitor = Monitor()
    monitor.netlink = Netlink(datagrams=[write_datagram(ifinfmsg, told, kind)])
    assert await monitor.next() == [LinkEvent(kind == RTM_DELLINK, name, index, bool(flags & IFF_UP))]
