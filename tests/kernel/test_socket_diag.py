"""A real kernel says which user of the node has made a connection."""

import os
import socket

import pytest

from kroute.kernel.netlink.socket_diag import owner_of
from tests.kernel.nodes import RealNode, run

USER = 65534
VIP = "10.96.0.10"


@pytest.mark.parametrize("source", ["127.0.0.9", VIP])
def test_a_user_is_known_whatever_address_of_the_node_its_process_takes(node: RealNode, source: str) -> None:
    for command in ("link add vips type dummy", f"address add {VIP}/32 dev vips", "link set vips up", "link set lo up"):
        run(f"ip {command}")
    with socket.create_server(("", 0)) as listener:
        os.seteuid(USER)
        try:
            client = socket.socket()
        finally:
            os.seteuid(0)
        client.bind((source, 0))
        client.connect(("127.0.0.1", listener.getsockname()[1]))
        accepted, _ = listener.accept()
        with accepted:
            assert owner_of(accepted) == USER
            client.close()
            assert owner_of(accepted) is None, "the kernel says root of a socket that is closed"
