"""kroute writes only its own objects: the ledger, adoption at a restart, and foreign objects that stay untouched."""

import errno
from itertools import permutations
from pathlib import Path
from types import MappingProxyType

import pytest
from structlog.testing import capture_logs

from kroute.kernel.ipvs.objects import AddVirtualServer, RealServerState, VirtualServerOptions, VirtualServerState
from kroute.kernel.net.addresses import UnbindAddress
from kroute.reconcile.ledger import Ledger, LinkMade
from tests.unit.fake_node import DUMMY, NODE_IPV4, FakeNode, new_kernel, plan, server

WEB = (6, "10.96.0.1", 80)
STALE = (6, "10.96.0.8", 80)
FOREIGN = VirtualServerState(VirtualServerOptions("wlc"), MappingProxyType({("192.168.9.9", 80): RealServerState(3)}))


def left_by_another_run() -> object:
    """Return a kernel with the link, and virtual servers on two addresses of the link and on one that is not there."""
    kernel = new_kernel()
    kernel.add_link(DUMMY, kind="dummy", noarp=True)
    for vip in ("10.96.0.1", "10.96.0.8"):
        kernel.add_address(DUMMY, vip)
    for key in (WEB, STALE, (6, "192.168.123.201", 80)):
        kernel.virtual_servers[key] = VirtualServerState(
            VirtualServerOptions("rr"), {("10.1.0.1", 8080): RealServerState(1)}
        )
    return kernel


@pytest.mark.parametrize("order", list(permutations([0, 1, 2])), ids=str)
async def test_a_restart_writes_nothing_when_nothing_changed(tmp_path: Path, order: tuple[int, ...]) -> None:
    plans = [
        plan(
            "web",
            1,
            server("10.96.0.1", 80, "10.1.0.1", scheduler="mh", flags=0x10),
            server("fd00::1", 80, "fd00:1::1"),
        ),
        plan("dns", 1, server("10.96.0.10", 53, "10.1.0.9")),
    ]
    node = await FakeNode(tmp_path).start(*plans)
    node = await node.restarted().start(*plans, order=order)
    await node.resync()
    assert node.kernel.writes == []


async def test_a_restart_writes_the_difference_and_no_more(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(
        plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")), plan("old", 1, server("10.96.0.8", 80, "10.1.0.1"))
    )
    node = await node.restarted().start(
        plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")), plan("new", 1, server("10.96.0.9", 80, "10.1.0.1"))
    )
    assert [
        str(write) for write in node.kernel.writes if "10.96.0.1:" in str(write) or "10.96.0.1 " in str(write)
    ] == []
    assert set(node.kernel.virtual_servers) == {WEB, (6, "10.96.0.9", 80)}
    assert set(node.kernel.links[DUMMY].addresses) == {"10.96.0.1", "10.96.0.9"}


async def test_what_an_earlier_run_left_goes_in_the_order_of_a_withdrawal(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(plan("old", 1, server("fd00::8", 80, "fd00:1::1")))
    node = node.restarted()
    node.kernel.refuse(lambda change: change == UnbindAddress("fd00::8"), errno.EBUSY)
    await node.start()
    assert (6, "fd00::8", 80) in node.kernel.virtual_servers
    assert "fd00::8" in node.kernel.links[DUMMY].routes
    assert ("fd00::8", 6, 80) in node.kernel.sets["KROUTE-6-CLUSTER-IP"].elements
    node.kernel.accept_all()
    await node.wait(1)
    assert node.kernel.virtual_servers == {}
    assert node.kernel.links[DUMMY].routes == {}
    assert node.kernel.sets["KROUTE-6-CLUSTER-IP"].elements == set()


async def test_before_the_initial_sync_nothing_is_taken_away(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    node = node.restarted()
    await node.open()
    for controller in node.controllers:
        await controller.guarded(controller.resync)
    assert node.kernel.writes == []


async def test_with_a_ledger_exactly_what_it_names_is_ours(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    node.kernel.virtual_servers[6, "10.96.0.1", 443] = FOREIGN
    node = await node.restarted().start()
    assert node.kernel.virtual_servers == {(6, "10.96.0.1", 443): FOREIGN}


async def test_without_a_ledger_what_is_on_the_dummy_interface_is_ours(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, left_by_another_run())
    await node.start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    assert set(node.kernel.virtual_servers) == {WEB, (6, "192.168.123.201", 80)}
    assert set(node.kernel.links[DUMMY].addresses) == {"10.96.0.1"}
    again = Ledger.open(tmp_path)
    assert (again.virtual_servers, again.links) == ({WEB}, {DUMMY})


async def test_without_a_ledger_a_node_port_is_nobody_knows_whose_and_is_left_alone_and_reported(
    tmp_path: Path,
) -> None:
    node = await FakeNode(tmp_path).start(plan("web", 1, server(NODE_IPV4, 30080, "10.1.0.1")))
    node.ledger.path.unlink()
    node = await node.restarted().start(plan("web", 1, server(NODE_IPV4, 30080, "10.1.0.2")))
    await node.resync()
    key = (6, NODE_IPV4, 30080)
    assert set(node.kernel.virtual_servers[key].real_servers) == {("10.1.0.1", 8080)}
    assert [(problem.reason, str(owner)) for owner, problem in node.problems] == [
        ("ForeignVirtualServer", "default/web")
    ]
    del node.kernel.virtual_servers[key]
    await node.wait(31)
    assert set(node.kernel.virtual_servers[key].real_servers) == {("10.1.0.2", 8080)}


async def test_with_a_ledger_that_does_not_name_the_link_its_addresses_are_not_ours(tmp_path: Path) -> None:
    Ledger(tmp_path).record([LinkMade("another")])
    node = FakeNode(tmp_path, left_by_another_run())
    await node.start(plan("new", 1, server("10.96.0.9", 80, "10.1.0.1")))
    await node.apply(plan("new", 2))
    await node.resync()
    assert set(node.kernel.links[DUMMY].addresses) == {"10.96.0.1", "10.96.0.8"}
    await node.cleanup()
    assert set(node.kernel.links[DUMMY].addresses) == {"10.96.0.1", "10.96.0.8"}


async def test_a_link_of_our_name_that_is_no_dummy_is_left_alone_and_reported(tmp_path: Path) -> None:
    kernel = new_kernel()
    kernel.add_link(DUMMY, kind="bridge")
    with capture_logs() as logs:
        await FakeNode(tmp_path, kernel).start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    assert any("--dummy-interface" in line["error"] for line in logs if line["event"] == "controller.failed")
    assert kernel.links[DUMMY].addresses == {}


@pytest.mark.parametrize("when", ["before the start", "while it runs"])
async def test_a_foreign_virtual_server_in_the_way_is_left_alone_and_reported(tmp_path: Path, when: str) -> None:
    node = FakeNode(tmp_path)
    if when == "before the start":
        node.kernel.virtual_servers[WEB] = FOREIGN
        await node.start()
    else:
        await node.start()
        node.kernel.virtual_servers[WEB] = FOREIGN
    await node.apply(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"), server("10.96.0.1", 81, "10.1.0.1")))
    await node.wait(1)
    await node.resync()
    assert node.kernel.virtual_servers[WEB] == FOREIGN
    assert (6, "10.96.0.1", 81) in node.kernel.virtual_servers
    assert {(problem.reason, str(key)) for key, problem in node.problems} == {("ForeignVirtualServer", "default/web")}
    assert WEB not in Ledger.open(tmp_path).virtual_servers
    await node.apply(plan("web", 2))
    assert node.kernel.virtual_servers == {WEB: FOREIGN}


async def test_it_serves_as_soon_as_the_foreign_virtual_server_has_gone(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.kernel.virtual_servers[WEB] = FOREIGN
    await node.start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    del node.kernel.virtual_servers[WEB]
    await node.wait(31)
    assert ("10.1.0.1", 8080) in node.kernel.virtual_servers[WEB].real_servers


async def test_a_virtual_server_stands_in_the_ledger_before_it_stands_in_the_kernel(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start()
    seen: list[bool] = []

    def look(change: object) -> bool:
        if isinstance(change, AddVirtualServer):
            seen.append(change.key in Ledger.open(tmp_path).virtual_servers)
        return False

    node.kernel.refuse(look, 0)
    await node.apply(
        plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")),
        plan("mh", 1, server("10.96.0.2", 80, "10.1.0.1", scheduler="mh")),
    )
    assert seen == [True, True]


async def test_a_deleted_virtual_server_leaves_the_ledger(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    await node.apply(plan("web", 2))
    assert Ledger.open(tmp_path).virtual_servers == set()


class TestExcluded:
    """Excluded networks keep kroute from cleaning up what others made there, and from nothing else."""

    async def test_services_are_served_there_as_everywhere(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, exclude_cidrs=("10.96.0.0/28", "fd00::/64", f"{NODE_IPV4}/32"))
        await node.start(
            plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"), server("fd00::1", 80, "fd00:1::1")),
            plan("port", 1, server(NODE_IPV4, 30080, "10.1.0.1")),
        )
        assert set(node.kernel.virtual_servers) == {WEB, (6, "fd00::1", 80), (6, NODE_IPV4, 30080)}
        assert {"10.96.0.1", "fd00::1"} <= set(node.kernel.links[DUMMY].addresses)
        assert {"10.96.0.1", "fd00::1"} <= set(node.kernel.links[DUMMY].routes)
        assert ("10.96.0.1", 6, 80) in node.kernel.sets["KROUTE-CLUSTER-IP"].elements

    async def test_what_kroute_made_there_follows_its_service_and_goes_at_a_cleanup(self, tmp_path: Path) -> None:
        served = plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"))
        node = await FakeNode(tmp_path).start(served)
        node = await node.restarted(exclude_cidrs=("10.96.0.0/28",)).start(
            plan("web", 1, server("10.96.0.1", 80, "10.1.0.2"))
        )
        assert ("10.1.0.2", 8080) in node.kernel.virtual_servers[WEB].real_servers
        await node.apply(plan("web", 2))
        assert node.kernel.virtual_servers == {}
        assert node.kernel.links[DUMMY].addresses == {}
        await node.apply(plan("web", 3, server("10.96.0.1", 80, "10.1.0.1")))
        await node.cleanup()
        assert node.kernel.virtual_servers == {}

    async def test_a_virtual_server_there_that_no_ledger_names_is_never_cleaned_up(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, left_by_another_run(), exclude_cidrs=("10.96.0.8/32",))
        await node.start()
        await node.resync()
        await node.cleanup()
        assert set(node.kernel.virtual_servers) == {STALE, (6, "192.168.123.201", 80)}


async def test_what_a_reading_of_the_kernel_lacks_stays_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel returns its table in pages, which can miss an entry while others change."""
    web = plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"))
    node = (await FakeNode(tmp_path).start(web)).restarted()
    read = node.ipvs.read

    async def read_without_web() -> dict[tuple[int, str, int], VirtualServerState]:
        return {key: state for key, state in (await read()).items() if key != WEB}

    with monkeypatch.context() as patch:
        patch.setattr(node.ipvs, "read", read_without_web)
        await node.start(web)
    await node.resync()
    assert [problem.reason for _, problem in node.problems] == []
    again = node.restarted()
    await again.open()
    with monkeypatch.context() as patch:
        patch.setattr(again.ipvs, "read", read_without_web)
        await again.cleanup()
    assert again.kernel.virtual_servers == {}


@pytest.mark.parametrize("kept", [0, 30, 120, 300, 10_000], ids=lambda kept: f"{kept} bytes of it")
async def test_a_ledger_that_was_cut_short_leaves_ours_ours_and_foreign_ones_foreign(tmp_path: Path, kept: int) -> None:
    web = plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"), server("10.96.0.2", 80, "10.1.0.1"))
    old = plan("old", 1, server("10.96.0.8", 80, "10.1.0.1"))
    node = await FakeNode(tmp_path).start(web, old)
    foreign = (6, "192.168.123.201", 80)
    node.kernel.virtual_servers[foreign] = FOREIGN
    path = tmp_path / "ledger"
    path.write_bytes(path.read_bytes()[:kept])
    node = await node.restarted().start(web)
    assert set(node.kernel.virtual_servers) == {WEB, (6, "10.96.0.2", 80), foreign}
    assert node.kernel.virtual_servers[foreign] == FOREIGN
    assert set(node.kernel.links[DUMMY].addresses) == {"10.96.0.1", "10.96.0.2"}
    assert Ledger.open(tmp_path).is_whole
