"""Cleanup leaves the node as kroute found it."""

import copy
import errno
from pathlib import Path

from kroute.kernel.ipvs.objects import AddVirtualServer, DeleteVirtualServer, VirtualServerOptions, VirtualServerState
from tests.fakes.kernel import FakeKernel
from tests.unit.fake_node import DUMMY, SYSCTLS, FakeNode, new_kernel, plan, server


def picture(kernel: FakeKernel) -> object:
    tables = {at: table.chains for at, table in kernel.tables.items()}
    parts = (kernel.virtual_servers, kernel.timeouts, kernel.sets, kernel.sysctls, tables, kernel.links)
    return copy.deepcopy(parts)


def files(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def used(tmp_path: Path) -> FakeNode:
    """A node on which kroute has run."""
    kernel = new_kernel()
    for family in (2, 10):
        kernel.table(family, "nat")
        kernel.table(family, "mangle")
        kernel.table(family, "filter")
    node = FakeNode(tmp_path, kernel, ipvs_tcp_timeout=60, ipvs_udp_timeout=30)
    node.found = picture(kernel)
    await node.start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"), server("fd00::1", 80, "fd00:1::1")))
    return node


async def in_a_process_of_its_own(node: FakeNode) -> FakeNode:
    again = node.restarted()
    await again.open()
    return again


async def test_it_leaves_the_node_as_it_was_found(tmp_path: Path) -> None:
    node = await used(tmp_path)
    assert node.kernel.timeouts == (60, 120, 30)
    report = await (await in_a_process_of_its_own(node)).cleanup()
    assert report.failed == []
    assert picture(node.kernel) == node.found
    assert files(tmp_path) == []


async def test_it_tells_everything_that_it_has_undone(tmp_path: Path) -> None:
    report = await (await in_a_process_of_its_own(await used(tmp_path))).cleanup()
    told = "\n".join(report.undone)
    for thing in ("unbind 10.96.0.1", "TCP [fd00::1]:80", f"link {DUMMY}", "KROUTE-6-HAIRPIN", "chain KROUTE-SERVICES"):
        assert thing in told
    assert "set net.ipv4.ip_forward back to 0" in report.undone
    assert "900 s, 120 s, 300 s" in told


async def test_addresses_go_before_virtual_servers(tmp_path: Path) -> None:
    report = await (await in_a_process_of_its_own(await used(tmp_path))).cleanup()
    verbs = [line.split()[0] for line in report.undone if "unbind" in line or "virtual server" in line]
    assert verbs == ["unbind", "unbind", "delete", "delete"]


async def test_virtual_servers_are_made_as_planned_and_deleted_the_other_way_round(tmp_path: Path) -> None:
    """IPVS's list of deleted real servers has then on top what a new installation adds first."""
    node = FakeNode(tmp_path, new_kernel())
    addresses = [f"10.96.0.{number}" for number in (7, 30, 2, 19, 250, 11)]
    await node.start(plan("web", 1, *(server(address, 80, "10.1.0.1") for address in addresses)))
    made = [it.key[1] for it in node.kernel.writes if isinstance(it, AddVirtualServer)]
    again = await in_a_process_of_its_own(node)
    await again.cleanup()
    deleted = [it.key[1] for it in again.kernel.writes if isinstance(it, DeleteVirtualServer)]
    assert (made, deleted) == (addresses, addresses[::-1])


async def test_a_second_cleanup_finds_nothing_to_do(tmp_path: Path) -> None:
    node = await in_a_process_of_its_own(await used(tmp_path))
    await node.cleanup()
    again = await in_a_process_of_its_own(node)
    report = await again.cleanup()
    assert (report.undone, report.failed) == ([], [])
    assert again.kernel.writes == []


async def test_on_a_node_without_kroute_it_does_nothing_and_makes_nothing(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    await node.open()
    report = await node.cleanup()
    assert (report.undone, report.failed, files(tmp_path)) == ([], [], [])


async def test_it_goes_on_after_a_failure_reports_it_and_can_be_repeated(tmp_path: Path) -> None:
    node = await in_a_process_of_its_own(await used(tmp_path))
    node.kernel.refuse(
        lambda change: (
            change == DeleteVirtualServer((6, "10.96.0.1", 80)) or "destroy set KROUTE-HAIRPIN" in str(change)
        ),
        errno.EBUSY,
    )
    report = await node.cleanup()
    assert len(report.failed) == 2
    assert list(node.kernel.virtual_servers) == [(6, "10.96.0.1", 80)]
    assert list(node.kernel.sets) == ["KROUTE-HAIRPIN"]
    assert DUMMY not in node.kernel.links
    node.kernel.accept_all()
    again = await in_a_process_of_its_own(node)
    report = await again.cleanup()
    assert report.failed == []
    assert (node.kernel.virtual_servers, node.kernel.sets) == ({}, {})
    assert files(tmp_path) == []


async def test_a_value_that_somebody_has_changed_since_stays(tmp_path: Path) -> None:
    node = await in_a_process_of_its_own(await used(tmp_path))
    node.kernel.sysctls["net.ipv4.vs.conntrack"] = "7"
    node.kernel.timeouts = (61, 120, 30)
    await node.cleanup()
    assert node.kernel.sysctls == {**SYSCTLS, "net.ipv4.vs.conntrack": "7"}
    assert node.kernel.timeouts == (61, 120, 30)


async def test_without_a_ledger_it_goes_by_the_dummy_interface(tmp_path: Path) -> None:
    node = await used(tmp_path)
    node.ledger.path.unlink()
    node = await in_a_process_of_its_own(node)
    await node.cleanup()
    assert (node.kernel.virtual_servers, DUMMY in node.kernel.links) == ({}, False)


async def test_on_a_node_that_kroute_never_saw_a_link_of_its_name_is_somebody_elses(tmp_path: Path) -> None:
    kernel = new_kernel()
    kernel.add_link(DUMMY, kind="dummy")
    kernel.add_address(DUMMY, "10.96.0.1")
    key = (6, "10.96.0.1", 80)
    kernel.virtual_servers[key] = VirtualServerState(VirtualServerOptions(), {})
    found = picture(kernel)
    node = FakeNode(tmp_path, kernel)
    await node.open()
    report = await node.cleanup()
    assert (report.undone, report.failed) == ([], [])
    assert picture(kernel) == found
