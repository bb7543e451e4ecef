"""A look repairs what is small enough to be read every period, without a budget for resyncs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.fake_node import FakeNode, plan, server


def sysctl(node: FakeNode) -> None:
    node.kernel.sysctls["net.ipv4.vs.conntrack"] = "0"


def timeouts(node: FakeNode) -> None:
    node.kernel.timeouts = (1, 2, 3)


def ledger(node: FakeNode) -> None:
    node.ledger.path.unlink()


@pytest.mark.parametrize("damage", [sysctl, timeouts, ledger])
async def test_the_next_look_repairs_and_a_resync_follows(tmp_path: Path, damage: Callable[[FakeNode], None]) -> None:
    timeouts = {"ipvs_tcp_timeout": 901, "ipvs_tcpfin_timeout": 121, "ipvs_udp_timeout": 301}
    node = FakeNode(tmp_path, resync_budget=0.0, **timeouts)
    await node.start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    await node.resync()
    before = (dict(node.kernel.sysctls), node.kernel.timeouts)
    assert node.service_proxy.statistics().resyncs == 1
    damage(node)
    await node.resync()
    assert (dict(node.kernel.sysctls), node.kernel.timeouts) == before
    assert node.ledger.path.exists()
    statistics = node.service_proxy.statistics()
    assert (statistics.repairs, statistics.resyncs) == (1, 2)
