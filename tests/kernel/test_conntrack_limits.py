"""The limits of the connection tracker on a real kernel: in the initial network namespace, and in another."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.controllers.ipvs.sysctls import Circumstances, NodeSysctls, conntrack_rows
from kroute.kernel.sysctl import Sysctls
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.ledger import Ledger
from kroute.settings import Settings
from tests.kernel.nodes import RealNode

HERE = Circumstances((7, 0), ipv6=False)
MAX, BUCKETS, UDP = (f"net.netfilter.nf_conntrack_{name}" for name in ("max", "buckets", "udp_timeout"))


@pytest.fixture
def before() -> Iterator[dict[str, int]]:
    """The values of the namespace in which the tests run; they are there again afterwards."""
    sysctls = Sysctls()
    values = {name: str(sysctls.read(name)) for name in (MAX, BUCKETS, UDP)}
    yield {name: int(value) for name, value in values.items()}
    assert {name: sysctls.read(name) for name in values} == values


def limits(state_dir: Path, most: int) -> NodeSysctls:
    rows = conntrack_rows(Settings("", conntrack_max_per_core=most, conntrack_udp_timeout=11), 1)
    return NodeSysctls(Sysctls(), Ledger.open(state_dir), rows)


def test_in_the_initial_namespace_limit_and_table_are_raised_and_put_back(
    tmp_path: Path, before: dict[str, int]
) -> None:
    most = max(before[MAX], 4 * before[BUCKETS]) + 4097
    rows = limits(tmp_path, most)
    assert rows.ensure(HERE) == []
    assert Sysctls().read(MAX) == str(most)
    assert int(Sysctls().read(BUCKETS) or 0) >= most // 4
    assert Sysctls().read(UDP) == "11"
    assert rows.ensure(HERE) == [], "the kernel rounds the table up: that is no drift"
    report = CleanupReport()
    NodeSysctls(Sysctls(), Ledger.open(tmp_path), ()).restore(report)
    assert len(report.undone) == 3
    assert report.failed == []


def test_in_another_namespace_the_limit_is_refused_once_and_the_time_outs_are_set(
    node: RealNode, tmp_path: Path
) -> None:
    rows = limits(tmp_path, int(Sysctls().read(MAX) or 0) + 1)
    with capture_logs() as logs:
        assert rows.ensure(HERE) == rows.ensure(HERE) == []
    assert [line["sysctl"] for line in logs if line["event"] == "sysctl.failed"] == [MAX]
    assert Sysctls().read(UDP) == "11"
