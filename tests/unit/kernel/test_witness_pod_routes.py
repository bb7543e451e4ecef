"""pyroute2 reads kroute's requests about routes and tunnels to other nodes' pods, and kroute parses its answers."""

import socket
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST
from pyroute2.netlink.rtnl import RTM_DELROUTE, RTM_DELRULE, RTM_NEWLINK, RTM_NEWROUTE, RTM_NEWRULE
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from kroute.kernel.pods.pod_routes import (
    METRIC,
    PRIORITY,
    PROTOCOL,
    TABLE,
    DeletePodRoute,
    MakeTunnel,
    PodRoute,
    PodRoutes,
    SetPodRoute,
    SetRule,
    Tunnel,
)
from tests.unit.kernel.witness import Netlink, bits_of, family_of, interfaces, pairs, ports, read, witnessed, write

MAIN = 254
lengths = st.integers(1, 32)


def with_socket(*answers: list[bytes]) -> tuple[PodRoutes, Netlink]:
    client = PodRoutes()
    client.netlink = netlink = Netlink(*answers)
    return client, netlink


@witnessed
@given(pairs(), lengths, st.booleans())
async def test_a_route_by_a_node_is_written_and_read_as_it_is(
    ends: tuple[str, str], length: int, replaces: bool
) -> None:
    network, route = f"{ends[0]}/{length}", PodRoute(ends[1], gateway=ends[1])
    client, netlink = with_socket()
    with interfaces({}):
        await client.write([SetPodRoute(network, route, replaces), DeletePodRoute(network, route)])
    made, gone = (read(rtmsg, message) for message in netlink.sent)
    how = NLM_F_REPLACE if replaces else NLM_F_EXCL
    assert made[:2] == (RTM_NEWROUTE, NLM_F_REQUEST | NLM_F_CREATE | how)
    assert gone[:2] == (RTM_DELROUTE, NLM_F_REQUEST)
    common = {"family": family_of(ends[0]), "dst_len": length, "proto": PROTOCOL, "RTA_DST": ends[0]}
    common |= {"RTA_PRIORITY": METRIC, "RTA_TABLE": MAIN}
    for each in (made, gone):
        assert {name: each.contents[name] for name in common} == common
    assert (made.contents["RTA_GATEWAY"], made.contents["RTA_PREFSRC"]) == (ends[1], ends[1])
    told = {**common, "table": MAIN, "type": 1, "RTA_GATEWAY": ends[1], "RTA_PREFSRC": ends[1]}
    client, _ = with_socket([write(rtmsg, told)])
    with interfaces({}):
        assert await client.routes() == {network: route}


@witnessed
@given(pairs(), ports)
async def test_a_tunnel_is_made_and_read_as_it_is(ends: tuple[str, str], port: int) -> None:
    tunnel = Tunnel(*ends, port)
    client, netlink = with_socket()
    with interfaces({tunnel.link: 7}):
        assert await client.write([MakeTunnel(tunnel)]) == []
    made = read(ifinfmsg, netlink.sent[0])
    assert made[:2] == (RTM_NEWLINK, NLM_F_REQUEST | NLM_F_CREATE)
    is_ipv6 = ":" in ends[0]
    of = "IP6TNL" if is_ipv6 else "IPIP"
    info = made.contents["IFLA_LINKINFO"]
    data: dict[str, Any] = info["IFLA_INFO_DATA"]
    assert made.contents["IFLA_IFNAME"] == tunnel.link
    assert info["IFLA_INFO_KIND"] == ("ip6tnl" if is_ipv6 else "ipip")
    assert (data[f"IFLA_{of}_LOCAL"], data[f"IFLA_{of}_REMOTE"]) == ends
    assert data[f"IFLA_{of}_PROTO"] == (41 if is_ipv6 else 4)
    assert data.get(f"IFLA_{of}_ENCAP_DPORT", 0) == port
    assert data.get(f"IFLA_{of}_ENCAP_TYPE", 0) == (2 if port else 0)
    told = {"flags": 1, "index": 7, "IFLA_IFNAME": tunnel.link, "IFLA_LINKINFO": info}
    client, _ = with_socket([write(ifinfmsg, told)])
    assert await client.tunnels() == {tunnel.link: tunnel}


@witnessed
@given(pairs(), st.booleans())
async def test_a_rule_for_pods_is_written_and_read_as_it_is(ends: tuple[str, str], is_wanted: bool) -> None:
    network = f"{ends[0]}/{bits_of(ends[0])}"
    client, netlink = with_socket()
    with interfaces({}):
        await client.write([SetRule(network, is_wanted)])
    [sent] = (read(fibmsg, message) for message in netlink.sent)
    assert sent.type == (RTM_NEWRULE if is_wanted else RTM_DELRULE)
    told = {"family": family_of(ends[0]), "src_len": bits_of(ends[0]), "action": 1, "FRA_SRC": ends[0]}
    told |= {"FRA_PRIORITY": PRIORITY, "FRA_TABLE": TABLE, "FRA_PROTOCOL": PROTOCOL}
    assert {name: sent.contents[name] for name in told} == told
    others = [{**told, name: 1} for name in ("FRA_PRIORITY", "FRA_TABLE", "FRA_PROTOCOL")]
    answers = [write(fibmsg, each) for each in (told, *others)]
    client, _ = with_socket(*([answers, []] if family_of(ends[0]) == socket.AF_INET else [[], answers]))
    assert await client.rules() == {network}
