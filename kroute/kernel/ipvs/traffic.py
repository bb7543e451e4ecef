"""The traffic of each virtual server since it was made (include/uapi/linux/ip_vs.h, IPVS_SVC_ATTR_STATS64).

The kernel sums up its processors' counters every two seconds (net/netfilter/ipvs/ip_vs_est.c), so the numbers may be
two seconds old.
"""

from typing import NamedTuple

from kroute.kernel.ipvs.messages import ATTR_SERVICE, parse_key
from kroute.kernel.ipvs.objects import VirtualServerKey
from kroute.kernel.netlink.generic import GENERIC_HEADER
from kroute.kernel.netlink.message import attributes, to_u64

SVC_STATS64 = 12
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
    counters = attributes(service[SVC_STATS64])
    fields = (STATS_CONNS, STATS_IN_PACKETS, STATS_OUT_PACKETS, STATS_IN_BYTES, STATS_OUT_BYTES)
    return key, Traffic(*(to_u64(counters[field]) for field in fields))
