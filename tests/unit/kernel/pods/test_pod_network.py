"""The end of a tunnel in a pod, as far as no kernel is needed: tests/kernel/test_tunnels.py has the rest."""

import socket

import pytest

from kroute.kernel.netlink.message import u32
from kroute.kernel.netlink.rtnetlink import ROUTE_HEADER, RTA_OIF, RTN_UNICAST
from kroute.kernel.pods.pod_network import KINDS, RT_TABLE_MAIN, copied_route, greatest_segment


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("mtu", [0, 1, 68, 99, 1500, 65536, 2**31 - 1])
def test_any_mtu_of_a_pods_link_gives_a_route_that_the_kernel_lists_as_it_was_written(family: int, mtu: int) -> None:
    """The MTU is read after the addresses: whoever is in the pod may have changed it meanwhile."""
    route = ROUTE_HEADER.pack(family, 0, 0, 0, RT_TABLE_MAIN, 0, 0, RTN_UNICAST, 0) + u32(RTA_OIF, 2)
    segment = greatest_segment(mtu, KINDS[family])
    copied = copied_route(route, segment)
    assert copied is not None
    assert copied_route(copied, 7) == copied
    assert segment <= 65495


def test_a_clients_segments_leave_room_for_the_outer_header() -> None:
    assert [greatest_segment(1500, KINDS[it]) for it in (socket.AF_INET, socket.AF_INET6)] == [1440, 1400]
