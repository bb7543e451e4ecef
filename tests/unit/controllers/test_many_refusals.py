"""Many objects that the kernel refuses, each since another moment: the kernel is not read all the time for them."""

from errno import EACCES
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.kernel.net.addresses import BindAddress
from tests.unit.fake_node import FakeNode, new_kernel, plan, server

REFUSED = 20
SECONDS = 300


@pytest.mark.parametrize("has_ipv4", [True, False], ids=["IPv4 is served", "IPv6 only"])
async def test_retries_share_their_resyncs_and_become_rare(tmp_path: Path, has_ipv4: bool) -> None:
    """As on a node where IPv6 is switched off, to which Services with an IPv6 address come one by one.

    Where no IPv4 address is bound, a resync has route_fix write the routes again, before the addresses are tried.
    """
    kernel = new_kernel()
    kernel.refuse(lambda change: isinstance(change, BindAddress) and ":" in change.address, EACCES)
    node = FakeNode(tmp_path, kernel)
    with capture_logs() as logs:
        await node.start(*([plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"))] if has_ipv4 else []))
        for number in range(1, REFUSED + 1):
            await node.apply(plan(f"web-{number}", 1, server(f"fd00::{number:x}", 80, "fd00:1::1")))
            await node.wait(0.73)
        for _ in range(60):
            await node.wait(1)
        before = node.service_proxy.statistics().resyncs
        for _ in range(SECONDS):
            await node.wait(1)
    assert node.service_proxy.statistics().resyncs - before <= SECONDS / 15 + 1
    assert len([line for line in logs if line["event"] == "write.refused"]) <= REFUSED
