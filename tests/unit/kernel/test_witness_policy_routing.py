"""pyroute2 reads kroute's requests about policy rules and tables, and kroute parses its answers."""

import socket
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST
from pyroute2.netlink.rtnl import RTM_DELROUTE, RTM_DELRULE, RTM_GETROUTE, RTM_GETRULE, rt_type
from pyroute2.netlink.rtnl.fibmsg import FR_ACT_TO_TBL, fibmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from kroute.kernel.net.policy_routing import PolicyRouting, PolicyRule, TableRoute
from tests.unit.kernel.witness import (
    FAMILIES,
    Netlink,
    any_address,
    families,
    family_of,
    indexes,
    interfaces,
    names,
    read,
    u32s,
    witnessed,
    write,
)

tables = st.integers(1, 252) | st.integers(256, (1 << 32) - 1)


def in_header(table: int) -> int:
    """Return the table's byte in the header: RT_TABLE_COMPAT for larger numbers, which only the attribute holds."""
    return table if table < 256 else 252


@witnessed
@given(families, st.none() | u32s, st.none() | u32s, tables)
async def test_a_rule_is_read_and_deleted_as_the_kernel_told_of_it(
    family: int, priority: int | None, mark: int | None, table: int
) -> None:
    told: dict[str, Any] = {"family": family, "table": in_header(table), "action": FR_ACT_TO_TBL, "FRA_TABLE": table}
    told |= {"FRA_PRIORITY": priority} if priority is not None else {}
    told |= {"FRA_FWMARK": mark, "FRA_FWMASK": 0xFFFFFFFF} if mark is not None else {}
    payload = write(fibmsg, told)
    routing = PolicyRouting()
    routing.netlink = netlink = Netlink(*([payload] if each == family else [] for each in FAMILIES))
    [rule] = await routing.rules()
    assert rule == PolicyRule(family, priority or 0, mark, table, payload)
    assert await routing.delete([rule]) == []
    asked = [read(fibmsg, message) for message in netlink.sent]
    assert [each[:2] for each in asked] == [(RTM_GETRULE, NLM_F_REQUEST | NLM_F_DUMP)] * 2 + [
        (RTM_DELRULE, NLM_F_REQUEST)
    ]
    assert [each.contents["family"] for each in asked] == [*FAMILIES, family]
    assert {name: value for name, value in asked[-1].contents.items() if name in told} == told


@witnessed
@given(any_address(), st.integers(0, 32), tables, names, indexes, st.sampled_from(["local", "unicast"]), st.booleans())
async def test_a_tables_route_is_read_and_deleted_as_the_kernel_told_of_it(
    address: str, length: int, table: int, name: str, index: int, kind: str, is_default: bool
) -> None:
    told: dict[str, Any] = {"family": family_of(address), "table": in_header(table), "type": rt_type[kind]}
    told |= {"RTA_TABLE": table, "RTA_OIF": index}
    told |= {"dst_len": 0} if is_default else {"dst_len": length, "RTA_DST": address}
    payload = write(rtmsg, told)
    routing = PolicyRouting()
    routing.netlink = netlink = Netlink(*([payload] if each == told["family"] else [] for each in FAMILIES))
    with interfaces({name: index}):
        [route] = await routing.routes({table})
    destination = "default" if is_default else f"{address}/{length}"
    assert route == TableRoute(told["family"], table, destination, name, kind == "local", payload)
    assert await routing.delete([route]) == []
    asked = [read(rtmsg, message) for message in netlink.sent]
    assert [(each.type, each.contents["family"]) for each in asked] == [
        (RTM_GETROUTE, socket.AF_INET),
        (RTM_GETROUTE, socket.AF_INET6),
        (RTM_DELROUTE, told["family"]),
    ]
    assert {name: value for name, value in asked[-1].contents.items() if name in told} == told
