"""The traffic of virtual servers and real servers since they were made (include/uapi/linux/ip_vs.h, *_ATTR_STATS64).

The kernel sums up its processors' counters every two seconds (net/netfilter/ipvs/ip_vs_est.c), so the numbers may be
two seconds old.
"""

from typing import NamedTuple, TypeAlias

from kroute.kernel.ipvs.messages import ATTR_DEST, ATTR_SERVICE, parse_key, parse_real_server
from kroute.kernel.ipvs.objects import MASQUERADING, RealServerKey, VirtualServerKey
from kroute.kernel.netlink.generic import GENERIC_HEADER
from kroute.kernel.netlink.message import attributes, to_u64

SVC_STATS64 = DEST_STATS64 = 12
STATS_CONNS, STATS_IN_PACKETS, STATS_OUT_PACKETS, STATS_IN_BYTES, STATS_OUT_BYTES = range(1, 6)


class Traffic(NamedTuple):
    """Scheduled connections, and packets and bytes from clients (in) and to them (out).

    Real servers with direct routing answer the clients directly, so their answers do not count as packets or bytes out.
    """

    connections: int = 0
    packets_in: int = 0
    packets_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


def parse_traffic(payload: bytes) -> tuple[VirtualServerKey, Traffic] | None:
    """One answer to `encode_dump`; None for a virtual server of a firewall mark."""
    service = attributes(attributes(payload, GENERIC_HEADER.size)[ATTR_SERVICE])
    key = parse_key(service)
    if key is None:
        return None
    return key, _traffic(service[SVC_STATS64])


class RealServerTraffic(NamedTuple):
    """What has gone through a real server since it was added, and how many of its connections are active now."""

    traffic: Traffic = Traffic()
    active: int = 0


TrafficByServer: TypeAlias = dict[VirtualServerKey, dict[RealServerKey, RealServerTraffic]]
"""The traffic of the real servers of some virtual servers."""


def parse_real_server_traffic(payload: bytes, key: VirtualServerKey) -> tuple[RealServerKey, RealServerTraffic] | None:
    """One answer to `encode_real_server_dump`; None for a real server whose answers bypass this machine."""
    real_server, state = parse_real_server(payload, key)
    if state.method != MASQUERADING:
        return None
    dest = attributes(attributes(payload, GENERIC_HEADER.size)[ATTR_DEST])
    return real_server, RealServerTraffic(_traffic(dest[DEST_STATS64]), state.active)


def _traffic(stats: bytes) -> Traffic:
    counters = attributes(stats)
    fields = (STATS_CONNS, STATS_IN_PACKETS, STATS_OUT_PACKETS, STATS_IN_BYTES, STATS_OUT_BYTES)
    return Traffic(*(to_u64(counters[field]) for field in fields))
