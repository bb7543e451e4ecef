"""pyroute2 reads kroute's requests about addresses, and kroute parses its answers (struct ifaddrmsg)."""

import socket
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST
from pyroute2.netlink.rtnl import RTM_DELADDR, RTM_GETADDR, RTM_NEWADDR, rt_scope
from pyroute2.netlink.rtnl.ifaddrmsg import (
    IFA_F_DEPRECATED,
    IFA_F_NODAD,
    IFA_F_NOPREFIXROUTE,
    IFA_F_SECONDARY,
    IFA_F_TENTATIVE,
    ifaddrmsg,
)

from kroute.kernel.net.addresses import (
    AddressArrivals,
    Addresses,
    BindAddress,
    InterfaceAddress,
    RenewAddress,
    UnbindAddress,
    parse_address,
)
from kroute.kernel.net.monitor import AddressEvent, Monitor
from tests.unit.kernel.witness import (
    Netlink,
    Reading,
    any_address,
    bits_of,
    family_of,
    indexes,
    interfaces,
    names,
    pairs,
    read,
    u8s,
    u32s,
    witnessed,
    write,
    write_datagram,
)

lifetimes = st.just(0) | u32s
two_addresses = pairs().filter(lambda both: both[0] != both[1])
NEVER = {"ifa_preferred": 0xFFFFFFFF, "ifa_valid": 0xFFFFFFFF, "cstamp": 0, "tstamp": 0}


def header(address: str, index: int, scope: str = "universe") -> dict[str, int]:
    fields = {"family": family_of(address), "prefixlen": bits_of(address), "flags": 0}
    return {**fields, "scope": rt_scope[scope], "index": index}


def bound(address: str, index: int, lifetime: int) -> dict[str, Any]:
    """Return a VIP's message. IPv4: scope link. IPv6: no DAD, no prefix route; with a lifetime, not preferred."""
    if ":" in address:
        wanted = header(address, index) | {"IFA_LOCAL": address, "IFA_FLAGS": IFA_F_NODAD | IFA_F_NOPREFIXROUTE}
    else:
        wanted = header(address, index, "link") | {"IFA_LOCAL": address, "IFA_ADDRESS": address}
    if lifetime:
        preferred = 0 if ":" in address else lifetime
        wanted["IFA_CACHEINFO"] = {"ifa_preferred": preferred, "ifa_valid": lifetime, "cstamp": 0, "tstamp": 0}
    return wanted


@witnessed
@given(names, indexes, any_address(), lifetimes)
async def test_an_address_is_bound_renewed_and_unbound(name: str, index: int, address: str, lifetime: int) -> None:
    client = Addresses()
    client.netlink = netlink = Netlink()
    changes = [
        BindAddress(address, keep_kernel_route=True, lifetime=lifetime),
        RenewAddress(address, lifetime),
        UnbindAddress(address),
    ]
    with interfaces({name: index}):
        assert await client.write(name, changes) == []
    contents = bound(address, index, lifetime)
    deleted = header(address, index) | {"IFA_LOCAL": address}
    create = NLM_F_REQUEST | NLM_F_CREATE
    assert [read(ifaddrmsg, message) for message in netlink.sent] == [
        Reading(RTM_NEWADDR, create | NLM_F_EXCL, contents),
        Reading(RTM_NEWADDR, create | NLM_F_REPLACE, contents),
        Reading(RTM_DELADDR, NLM_F_REQUEST, deleted),
    ]


@witnessed
@given(names, indexes, two_addresses)
async def test_the_addresses_of_one_interface_are_asked_for_by_its_index(
    name: str, index: int, both: tuple[str, str]
) -> None:
    address, elsewhere = both
    told = header(address, index) | {"IFA_LOCAL": address}
    client = Addresses()
    foreign = header(elsewhere, index + 1) | {"IFA_LOCAL": elsewhere}
    client.netlink = netlink = Netlink([write(ifaddrmsg, told), write(ifaddrmsg, foreign)])
    with interfaces({name: index, "other": index + 1}):
        assert await client.read(name) == {address}
    [asked] = [read(ifaddrmsg, message) for message in netlink.sent]
    assert asked[:2] == (RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP)
    assert asked.contents == {"family": 0, "prefixlen": 0, "flags": 0, "scope": 0, "index": index}


@witnessed
@given(pairs(), st.integers(0, 128), st.sampled_from(["universe", "site", "link", "host", "nowhere"]), u32s, indexes)
def test_an_address_is_read_with_length_scope_and_flags(
    both: tuple[str, str], length: int, scope: str, flags: int, index: int
) -> None:
    own, peer = both
    told = {"family": family_of(own), "prefixlen": length, "flags": flags & 0xFF, "scope": rt_scope[scope]}
    told |= {"index": index, "IFA_ADDRESS": peer, "IFA_LOCAL": own, "IFA_LABEL": "a", "IFA_CACHEINFO": NEVER}
    found = parse_address(write(ifaddrmsg, {**told, "IFA_FLAGS": flags}), {index: "a"})
    assert found == InterfaceAddress(
        interface="a",
        address=own,
        prefix_length=length,
        scope="global" if scope == "universe" else scope,
        tentative=bool(flags & IFA_F_TENTATIVE),
        deprecated=bool(flags & IFA_F_DEPRECATED),
        secondary=bool(flags & IFA_F_SECONDARY),
        ifindex=index,
        peer="" if peer == own else peer,
    )
    assert parse_address(write(ifaddrmsg, told), {index: "a"}) == found, "the eight flags of the header are the same"
    assert parse_address(write(ifaddrmsg, told), {index + 1: "a"}) is None


@witnessed
@given(any_address(), st.integers(0, 199), indexes)
def test_an_address_without_a_peer_has_its_own_scope_by_number(address: str, scope: int, index: int) -> None:
    told = header(address, index) | {"scope": scope, "IFA_ADDRESS": address}
    expected = InterfaceAddress("a", address, bits_of(address), str(scope) if scope else "global", ifindex=index)
    assert parse_address(write(ifaddrmsg, told), {index: "a"}) == expected


@witnessed
@given(st.sampled_from([RTM_NEWADDR, RTM_DELADDR]), two_addresses, indexes, u8s)
async def test_an_address_that_comes_or_goes_is_an_event_and_an_arrival(
    kind: int, both: tuple[str, str], index: int, flags: int
) -> None:
    address, elsewhere = both
    told = header(address, index) | {"flags": flags, "IFA_LOCAL": address, "IFA_CACHEINFO": NEVER}
    foreign = header(elsewhere, index + 1) | {"IFA_LOCAL": elsewhere}
    datagram = write_datagram(ifaddrmsg, told, kind) + write_datagram(ifaddrmsg, foreign, kind)
    monitor = Monitor(only_interface="a")
    monitor._names, monitor.netlink = {index: "a", index + 1: "b"}, Netlink(datagrams=[datagram])
    [event] = await monitor.next()
    found = parse_address(write(ifaddrmsg, told), {index: "a"})
    assert found
    assert event == AddressEvent(kind == RTM_DELADDR, found)
    arrivals = AddressArrivals(index)
    arrivals.netlink = Netlink(datagrams=[datagram])
    assert await arrivals.next() == {address}


@witnessed
@given(any_address(), indexes)
def test_what_is_no_ip_address_is_left_out(address: str, index: int) -> None:
    told = header(address, index) | {"family": socket.AF_APPLETALK, "IFA_LOCAL": address}
    assert parse_address(write(ifaddrmsg, told), {index: "a"}) is None
