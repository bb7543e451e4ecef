"""The limits of the connection tracker are those that kube-proxy would set."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kroute.controllers.ipvs import sysctls
from kroute.controllers.ipvs.sysctls import conntrack_rows, most_connections
from kroute.reconcile.ledger import Ledger
from kroute.settings import Settings
from tests.fakes.kernel import FakeKernel
from tests.unit.fake_node import FakeNode, new_kernel

MAX, BUCKETS = "net.netfilter.nf_conntrack_max", "net.netfilter.nf_conntrack_buckets"
ESTABLISHED = "net.netfilter.nf_conntrack_tcp_timeout_established"
BEFORE = {
    MAX: "65536",
    BUCKETS: "16384",
    ESTABLISHED: "432000",
    "net.netfilter.nf_conntrack_tcp_timeout_close_wait": "60",
    "net.netfilter.nf_conntrack_tcp_be_liberal": "0",
    "net.netfilter.nf_conntrack_udp_timeout": "30",
    "net.netfilter.nf_conntrack_udp_timeout_stream": "120",
}
ALL: dict[str, Any] = {
    "conntrack_max_per_core": 30_001,
    "conntrack_tcp_be_liberal": True,
    "conntrack_tcp_timeout_established": 86400,
    "conntrack_tcp_timeout_close_wait": 3600,
    "conntrack_udp_timeout": 10,
    "conntrack_udp_timeout_stream": 180,
}


@pytest.fixture(autouse=True)
def _four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysctls.os, "cpu_count", lambda: 4)


def kernel() -> FakeKernel:
    made = new_kernel()
    made.sysctls.update(BEFORE)
    return made


def tracker(of: FakeKernel) -> dict[str, str]:
    return {name: of.sysctls[name] for name in BEFORE}


@pytest.mark.parametrize(
    ("per_core", "least", "processors", "most"),
    [
        (0, 131072, 4, 0),
        (32768, 131072, 2, 131072),
        (32768, 131072, 8, 262144),
        (32768, 131072, 64, 1048576),
        (1 << 21, 1 << 22, 1, 1048576),
        (1, 1 << 22, 1, 1 << 22),
    ],
)
def test_the_limit_is_that_of_all_processors_within_bounds(
    per_core: int, least: int, processors: int, most: int
) -> None:
    assert most_connections(Settings("", conntrack_max_per_core=per_core, conntrack_min=least), processors) == most


def test_nothing_is_named_that_is_0() -> None:
    assert list(conntrack_rows(Settings("", conntrack_min=131072), 4)) == []


async def test_all_are_set_and_put_back(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path, kernel(), **ALL).start()
    assert list(tracker(node.kernel).values()) == ["120004", "30208", "86400", "3600", "1", "10", "180"]
    assert {name: it.old for name, it in Ledger.open(tmp_path).sysctls.items() if name in BEFORE} == BEFORE
    await node.cleanup()
    assert tracker(node.kernel) == BEFORE


async def test_a_higher_limit_stays_and_a_lowered_one_is_raised_again(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, kernel(), conntrack_max_per_core=10_000)
    await node.start()
    assert node.kernel.sysctls[MAX] == BEFORE[MAX]
    assert MAX not in Ledger.open(tmp_path).sysctls
    node.kernel.sysctls[MAX] = "100"
    await node.resync()
    assert node.kernel.sysctls[MAX] == "40000"


async def test_a_timeout_that_another_program_changes_is_repaired_and_what_it_sets_last_stays_at_a_cleanup(
    tmp_path: Path,
) -> None:
    node = await FakeNode(tmp_path, kernel(), conntrack_tcp_timeout_established=86400).start()
    node.kernel.sysctls[ESTABLISHED] = "7"
    await node.resync()
    assert node.kernel.sysctls[ESTABLISHED] == "86400"
    assert node.service_proxy.statistics().repairs == 1
    node.kernel.sysctls[ESTABLISHED] = "8"
    await node.cleanup()
    assert node.kernel.sysctls[ESTABLISHED] == "8"


@pytest.mark.parametrize("way", ["read-only", "absent"])
async def test_a_limit_that_cannot_be_set_here_is_one_line_and_the_rest_goes_on(tmp_path: Path, way: str) -> None:
    """In a network namespace that is not the initial one."""
    of = kernel()
    if way == "absent":
        del of.sysctls[MAX], of.sysctls[BUCKETS]
    else:
        of.read_only_sysctls |= {MAX, BUCKETS}
    with capture_logs() as logs:
        node = await FakeNode(tmp_path, of, **ALL).start()
        await node.resync()
    [line] = [line for line in logs if line["event"] == "sysctl.failed"]
    assert line["sysctl"] == MAX
    assert "only the initial network namespace can set it" in line["meaning"]
    assert of.sysctls[ESTABLISHED] == "86400"
    assert node.service_proxy.statistics().failures == 0
