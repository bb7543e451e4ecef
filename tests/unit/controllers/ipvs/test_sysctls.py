"""The node's sysctls, and the IPVS timeouts."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.checks.node_checks import check_sysctls
from kroute.controllers.ipvs.sysctls import SYSCTLS as ROWS
from kroute.controllers.ipvs.sysctls import Circumstances
from kroute.reconcile.ledger import Ledger
from tests.fakes.sysctl import FakeSysctls, disable_ipv6
from tests.unit.fake_node import DUMMY, SYSCTLS, FakeNode, new_kernel, plan, server

REUSE = "net.ipv4.vs.conn_reuse_mode"
FACTOR = "net.ipv4.vs.conn_lfactor"
IPV6 = "net.ipv6.conf.all.forwarding"


def test_every_row_says_what_it_is_for() -> None:
    assert all(row.meaning for row in ROWS)


@pytest.mark.parametrize(
    ("version", "touched"),
    [((4, 0), False), ((4, 1), True), ((5, 8), True), ((5, 9), False), ((5, 10), False), ((6, 1), False)],
)
def test_port_reuse_is_touched_by_the_kernels_that_need_it(version: tuple[int, int], touched: bool) -> None:
    [row] = [row for row in ROWS if row.name == REUSE]
    assert row.value == "0"
    assert row.when(Circumstances(version, ipv6=False)) is touched


async def test_they_are_set_and_their_old_values_remembered(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start()
    assert {name: value for name, value in node.kernel.sysctls.items() if value != SYSCTLS[name]} == {
        "net.ipv4.vs.conntrack": "1",
        "net.ipv4.vs.expire_nodest_conn": "1",
        "net.ipv4.vs.expire_quiescent_template": "1",
        "net.ipv4.conf.all.arp_ignore": "1",
        "net.ipv4.conf.all.arp_announce": "2",
        "net.ipv4.ip_forward": "1",
    }
    assert {name: change.old for name, change in Ledger.open(tmp_path).sysctls.items()} == {
        "net.ipv4.vs.conntrack": "0",
        "net.ipv4.vs.expire_nodest_conn": "0",
        "net.ipv4.vs.expire_quiescent_template": "0",
        "net.ipv4.conf.all.arp_ignore": "0",
        "net.ipv4.conf.all.arp_announce": "0",
        "net.ipv4.ip_forward": "0",
        "net.ipv4.conf.all.accept_redirects": "1",
    }


async def test_the_size_of_the_connection_table_is_set_where_the_kernel_lets_it_be(tmp_path: Path) -> None:
    kernel = new_kernel()
    kernel.sysctls[FACTOR] = "-4"
    await FakeNode(tmp_path, kernel).start()
    assert kernel.sysctls[FACTOR] == "-8"
    assert Ledger.open(tmp_path).sysctls[FACTOR].old == "-4"


async def test_a_kernel_whose_connection_table_has_one_size_lacks_nothing(tmp_path: Path) -> None:
    with capture_logs() as logs:
        node = await FakeNode(tmp_path).start()
    assert FACTOR not in node.kernel.sysctls
    assert [line for line in logs if line["event"] == "sysctl.failed"] == []
    findings = check_sysctls(FakeSysctls(node.kernel), Circumstances((7, 3), ipv6=False), ROWS)
    assert [finding for finding in findings if FACTOR in str(finding)] == []


async def test_connections_that_routers_move_are_taken_where_pods_answer_clients_themselves(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path, direct_return=True).start()
    assert node.kernel.sysctls["net.ipv4.vs.sloppy_tcp"] == "1"
    assert Ledger.open(tmp_path).sysctls["net.ipv4.vs.sloppy_tcp"].old == "0"


async def test_arp_is_left_alone_without_strict_arp(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path, strict_arp=False).start()
    assert {name for name in Ledger.open(tmp_path).sysctls if "arp" in name} == set()
    assert node.kernel.sysctls["net.ipv4.conf.all.arp_ignore"] == "0"


async def test_what_is_right_already_is_neither_written_nor_remembered(tmp_path: Path) -> None:
    kernel = new_kernel()
    kernel.sysctls["net.ipv4.ip_forward"] = "1"
    await FakeNode(tmp_path, kernel).start()
    assert "net.ipv4.ip_forward" not in Ledger.open(tmp_path).sysctls
    assert not [write for write in kernel.writes if "ip_forward" in str(write)]


async def test_ipv6_forwards_when_an_ipv6_service_is_served(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    assert node.kernel.sysctls[IPV6] == "0"
    await node.apply(plan("six", 2, server("fd00::1", 80)))
    assert node.kernel.sysctls[IPV6] == "1"


async def test_ipv6_is_switched_on_for_the_link_of_the_vips_when_they_need_it(tmp_path: Path) -> None:
    kernel, own = new_kernel(), disable_ipv6(DUMMY)
    kernel.sysctls |= {own: "1", disable_ipv6("eth0"): "1"}
    node = await FakeNode(tmp_path, kernel).start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    assert kernel.sysctls[own] == "1"
    await node.apply(plan("six", 2, server("fd00::1", 80, "fd00:1::1")))
    assert kernel.sysctls[own] == "0"
    assert "fd00::1" in kernel.links[DUMMY].addresses
    assert kernel.sysctls[disable_ipv6("eth0")] == "1"


async def test_a_link_that_is_made_again_has_ipv6_before_its_vips_are_bound(tmp_path: Path) -> None:
    kernel, own = new_kernel(), disable_ipv6(DUMMY)
    kernel.sysctls[own] = "1"
    node = await FakeNode(tmp_path, kernel).start(plan("six", 1, server("fd00::1", 80, "fd00:1::1")))
    kernel.delete_link(DUMMY)
    kernel.sysctls[own] = "1"  # from `default`
    await node.settle()
    assert "fd00::1" in kernel.links[DUMMY].addresses
    assert node.service_proxy.statistics().failures == 0


async def test_a_failure_names_the_sysctl_once_and_the_others_go_on(tmp_path: Path) -> None:
    kernel = new_kernel()
    del kernel.sysctls["net.ipv4.vs.conntrack"]
    with capture_logs() as logs:
        node = await FakeNode(tmp_path, kernel).start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
        await node.resync()
    [line] = [line for line in logs if line["event"] == "sysctl.failed"]
    assert line["sysctl"] == "net.ipv4.vs.conntrack"
    assert kernel.sysctls["net.ipv4.ip_forward"] == "1"
    assert (6, "10.96.0.1", 80) in kernel.virtual_servers


async def test_the_resync_sets_them_again_and_cleanup_still_knows_the_first_value(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start()
    node.kernel.sysctls["net.ipv4.ip_forward"] = "0"
    await node.resync()
    assert node.kernel.sysctls["net.ipv4.ip_forward"] == "1"
    assert node.service_proxy.statistics().repairs == 1


@pytest.mark.parametrize("before", ["0", "1"])
async def test_what_the_kernel_changes_with_another_is_put_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Linux sets conf.all.accept_redirects to the opposite value whenever ip_forward changes."""
    redirects = "net.ipv4.conf.all.accept_redirects"
    write = FakeSysctls.write

    def as_linux_does(self: FakeSysctls, name: str, value: str) -> None:
        write(self, name, value)
        if name == "net.ipv4.ip_forward":
            self.kernel.sysctls[redirects] = str(1 - int(value))

    monkeypatch.setattr(FakeSysctls, "write", as_linux_does)
    kernel = new_kernel()
    kernel.sysctls[redirects] = before
    node = await FakeNode(tmp_path, kernel).start()
    assert kernel.sysctls[redirects] == "0"
    await node.cleanup()
    assert kernel.sysctls == {**SYSCTLS, redirects: before}


async def test_timeouts_are_set_where_the_settings_name_them_and_kept_so(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path, ipvs_tcp_timeout=60).start()
    assert node.kernel.timeouts == (60, 120, 300)
    node.kernel.timeouts = (900, 120, 300)
    await node.resync()
    assert node.kernel.timeouts == (60, 120, 300)
    assert node.service_proxy.statistics().repairs == 1


async def test_without_timeouts_in_the_settings_the_kernels_stay(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start()
    node.kernel.timeouts = (1, 2, 3)
    await node.resync()
    assert node.kernel.timeouts == (1, 2, 3)


ESTIMATION = {"net.ipv4.vs.run_estimation": "1", "net.ipv4.vs.est_nice": "0"}


async def test_estimation_is_left_alone_unless_the_settings_say_something(tmp_path: Path) -> None:
    kernel = new_kernel()
    kernel.sysctls.update(ESTIMATION)
    node = await FakeNode(tmp_path, kernel).start()
    assert {name: node.kernel.sysctls[name] for name in ESTIMATION} == ESTIMATION
    assert not ESTIMATION.keys() & Ledger.open(tmp_path).sysctls.keys()


async def test_estimation_is_switched_off_and_cleaned_up(tmp_path: Path) -> None:
    kernel = new_kernel()
    kernel.sysctls.update(ESTIMATION)
    node = await FakeNode(tmp_path, kernel, ipvs_estimation=False, ipvs_estimation_nice=10).start()
    assert {name: kernel.sysctls[name] for name in ESTIMATION} == {
        "net.ipv4.vs.run_estimation": "0",
        "net.ipv4.vs.est_nice": "10",
    }
    again = node.restarted()
    await again.open()
    await again.cleanup()
    assert {name: kernel.sysctls[name] for name in ESTIMATION} == ESTIMATION


async def test_estimation_is_switched_on_where_somebody_has_switched_it_off(tmp_path: Path) -> None:
    kernel = new_kernel()
    kernel.sysctls["net.ipv4.vs.run_estimation"] = "0"
    node = await FakeNode(tmp_path, kernel, ipvs_estimation=True).start()
    assert node.kernel.sysctls["net.ipv4.vs.run_estimation"] == "1"


async def test_a_kernel_without_estimation_sysctls_costs_a_line_each(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, ipvs_estimation=False, ipvs_estimation_nice=10)
    with capture_logs() as logs:
        await node.start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
        await node.resync()
    failed = [line for line in logs if line["event"] == "sysctl.failed"]
    assert [line["sysctl"] for line in failed] == ["net.ipv4.vs.run_estimation", "net.ipv4.vs.est_nice"]
    assert "Linux 6.2 and later have it" in failed[1]["error"]
    assert node.kernel.virtual_servers


async def test_a_node_that_begins_to_forward_ipv6_keeps_what_routers_have_advertised(tmp_path: Path) -> None:
    kernel = new_kernel()
    accept = {name: f"net.ipv6.conf.{name}.accept_ra" for name in ("eth0", "bond0/7", "veth1")}
    kernel.sysctls |= {IPV6: "0", **dict.fromkeys(accept.values(), "1")}
    kernel.hearing_routers = {"eth0", "bond0/7"}
    node = await FakeNode(tmp_path, kernel).start(plan("a", 1, server("10.96.0.1", 80, "10.1.0.1")))
    assert kernel.sysctls[accept["eth0"]] == "1"
    await node.apply(plan("b", 2, server("fd00:96::1", 80, "fd00:1::1")))
    assert (kernel.sysctls[IPV6], kernel.hearing_routers) == ("1", {"eth0", "bond0/7"})
    assert [kernel.sysctls[name] for name in accept.values()] == ["2", "2", "1"]
    await (again := node.restarted()).open()
    await again.cleanup()
    assert [kernel.sysctls[name] for name in (IPV6, *accept.values())] == ["0", "1", "1", "1"]
