"""IPVS as pyroute2 0.9.7 knows it, and what pyroute2 lacks, from include/uapi/linux/ip_vs.h.

pyroute2 differs from the kernel in four points:

- It shows timeouts and daemons as hexadecimal text.
- It reads a real server's address only beside its family, which requests give for the virtual server alone.
- It writes four bytes for an IPv4 address, and the kernel sends `union nf_inet_addr`.
- It takes IPv6's netmask, a prefix length in the host's byte order, for an IPv4 address.
"""

import socket
from typing import Any

from hypothesis import strategies as st
from pyroute2.netlink import genlmsg, nla
from pyroute2.netlink.generic import ipvs

from tests.unit.kernel.witness import family_of

PERSISTENT, HASHED, ONE_PACKET, SCHEDULER_1, SCHEDULER_2, SCHEDULER_3 = (1 << bit for bit in range(6))
"""IP_VS_SVC_F_*; only the kernel sets HASHED."""
CHOSEN_FLAGS = (ONE_PACKET, SCHEDULER_1, SCHEDULER_2, SCHEDULER_3)
FORWARDING = ("Masq", "Local", "Tunnel", "Route")
"""Indexed by IP_VS_CONN_F_MASQ, _LOCALNODE, _TUNNEL and _DROUTE; bits above IP_VS_CONN_F_FWD_MASK mean other things."""

protocols = st.sampled_from([6, 17, 132])


def with_types(nla_map: tuple[tuple[str, str], ...], **types: str) -> tuple[tuple[str, str], ...]:
    """Return pyroute2's table of attributes with other types, chosen by the end of an attribute's name."""
    return tuple(
        (name, next((new for end, new in types.items() if name.endswith(f"_ATTR_{end}")), old)) for name, old in nla_map
    )


class Request(genlmsg):
    """ipvsmsg, with the attributes of requests that pyroute2 does not know."""

    nla_map = with_types(
        ipvs.ipvsmsg.nla_map, DAEMON="daemon", TIMEOUT_TCP="uint32", TIMEOUT_TCP_FIN="uint32", TIMEOUT_UDP="uint32"
    )
    service = ipvs.ipvsmsg.service

    class dest(nla, ipvs.ipvsstats):  # noqa: N801 - pyroute2 finds it by this name
        nla_map = with_types(ipvs.ipvsmsg.dest.nla_map, ADDR="cdata")

    class daemon(nla):  # noqa: N801
        nla_map = (
            ("IPVS_DAEMON_ATTR_UNSPEC", "none"),
            ("IPVS_DAEMON_ATTR_STATE", "uint32"),
            ("IPVS_DAEMON_ATTR_MCAST_IFN", "asciiz"),
            ("IPVS_DAEMON_ATTR_SYNC_ID", "uint32"),
        )


class Answer(genlmsg):
    """ipvsmsg, with the attributes of answers that pyroute2 does not know."""

    nla_map = Request.nla_map
    dest = Request.dest
    daemon = Request.daemon

    class service(nla, ipvs.ipvsstats):  # noqa: N801
        nla_map = with_types(ipvs.ipvsmsg.service.nla_map, ADDR="cdata", NETMASK="cdata")
        flags = ipvs.ipvsmsg.service.flags


def contents(command: int, **attributes: Any) -> dict[str, Any]:
    """Return the generic header, with IPVS's version, and the attributes."""
    return {"cmd": command, "version": ipvs.GENL_VERSION, "reserved": 0} | {
        f"IPVS_CMD_ATTR_{name}": value for name, value in attributes.items()
    }


def packed_union(address: str) -> bytes:
    """`union nf_inet_addr`: 16 bytes, of which IPv4 uses the first four."""
    return socket.inet_pton(family_of(address), address).ljust(16, b"\0")
