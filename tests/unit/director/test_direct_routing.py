"""A director's controller on a fake kernel: what it binds and when, what it leaves alone, and what it deletes again."""

import asyncio
from collections.abc import Sequence
from errno import EIO
from pathlib import Path

import msgspec
import pytest

from kroute.base.forwarding import DIRECT_ROUTING, MASQUERADING
from kroute.director.direct_routing import DirectRouting, undo
from kroute.director.settings import DirectorSettings, LeaseSettings
from kroute.kernel.errors import Failure
from kroute.kernel.ipvs.objects import (
    AddVirtualServer,
    DeleteRealServer,
    IpvsChange,
    SetRealServer,
    SyncDaemon,
    SyncRole,
    VirtualServerOptions,
)
from kroute.kernel.net.addresses import BindAddress, RenewAddress, UnbindAddress
from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol, RealServer, ServicePlan, Vip, VirtualServer, VirtualServerKey
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.controller import Shared
from kroute.reconcile.ledger import AddressMade, Ledger
from kroute.settings import Settings
from tests.fakes.ipvs import FakeIpvs
from tests.fakes.kernel import FakeKernel
from tests.fakes.node_kernel import FakeNodeKernel
from tests.unit.fake_node import Clock

VIP, VIP6 = "203.0.113.1", "2001:db8::1"
SYSCTLS = {
    "net.ipv4.vs.expire_nodest_conn": "0",
    "net.ipv4.vs.expire_quiescent_template": "0",
    "net.ipv4.vs.sync_threshold": "3\t50",
    "net.ipv4.vs.sync_refresh_period": "0",
}


class FakeAnnouncer:
    """Keeps the announcements."""

    def __init__(self) -> None:
        self.announced: list[str] = []

    async def announce(self, interface: str, addresses: list[str]) -> None:
        assert interface == "eth0"
        self.announced += addresses


class FakeDirector:
    """One run of a director's controller on a kernel."""

    def __init__(
        self, state_dir: Path, kernel: FakeKernel | None = None, *, budget: float = 1.0, **settings: object
    ) -> None:
        self.kernel = kernel or new_kernel()
        self.clock = Clock()
        self.announcer = FakeAnnouncer()
        self.problems: list[tuple[ObjectKey, str]] = []
        self.ledger = Ledger.open(state_dir)
        self.broadcaster = Broadcaster()
        self.clients = FakeNodeKernel.of(self.kernel)
        self.ipvs, self.addresses = self.clients.ipvs, self.clients.addresses
        self.monitor = self.clients.monitor(only_interface="eth0", routes=False)
        common = Settings(node_name="one", scheduler="wrr", state_dir=state_dir, resync_budget=budget)
        fields = {"sync_interface": "eth0", "sync_id": 7, "lease": LeaseSettings(duration=20), **settings}
        report = lambda key, problem: self.problems.append((key, problem.reason))  # noqa: E731
        self.routing = DirectRouting(
            Shared(common, self.broadcaster, report, self.clock),
            DirectorSettings(common, "eth0", **fields),  # type: ignore[arg-type]
            self.clients,
            self.ledger,
            self.monitor,
            self.announcer,  # type: ignore[arg-type]
        )

    async def open(self) -> "FakeDirector":
        for client in (self.ipvs, self.addresses, self.monitor):
            await client.open()
        return self

    async def start(self, *plans: ServicePlan, leading: bool | None = True) -> "FakeDirector":
        await self.open()
        if leading is not None:
            self.routing.lead(leading)
        self.broadcaster.publish(plans)
        await self.routing.start()
        await self.routing.step()
        return self

    async def apply(self, *plans: ServicePlan) -> None:
        self.broadcaster.publish(plans)
        await self.routing.step()

    async def lead(self, leading: bool) -> None:
        self.routing.lead(leading)
        await self.routing.step()

    async def resync(self) -> None:
        self.clock.now += 100
        self.routing.confirm(self.clock.now, True)
        await self.routing.step()

    @property
    def bound(self) -> set[str]:
        return set(self.kernel.links["eth0"].addresses)

    @property
    def daemons(self) -> set[SyncDaemon]:
        return set(self.kernel.sync_daemons.values())


def new_kernel() -> FakeKernel:
    kernel = FakeKernel()
    kernel.add_link("eth0")
    kernel.sysctls.update(SYSCTLS)
    return kernel


def plan(name: str = "web", *nodes: str, generation: int = 1, vip: str = VIP, weight: int = 1) -> ServicePlan:
    key = VirtualServerKey(Protocol.TCP, vip, 80)
    reals = tuple(RealServer(node, 80, weight) for node in nodes or ("10.0.0.1",))
    return ServicePlan(
        ObjectKey("default", name),
        generation,
        virtual_servers=(VirtualServer(key, "wrr", 0, None, reals, method=DIRECT_ROUTING),),
        vips=(Vip(vip, None),),
    )


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def test_the_active_director_binds_and_announces_behind_its_virtual_servers(state_dir: Path) -> None:
    director = await FakeDirector(state_dir).start(plan("web", "10.0.0.1", "10.0.0.2"))
    assert director.bound == {VIP}
    assert director.kernel.links["eth0"].lifetimes == {VIP: 20}
    state = director.kernel.virtual_servers[6, VIP, 80]
    assert {it.method for it in state.real_servers.values()} == {DIRECT_ROUTING}
    kinds = [type(write) for write in director.kernel.writes]
    assert kinds.index(AddVirtualServer) < kinds.index(BindAddress)
    assert director.announcer.announced == [VIP]
    for _ in range(3):
        director.clock.now += 1
        await director.routing.step()
    assert director.announcer.announced == [VIP] * 3


async def test_virtual_servers_of_very_many_nodes_are_written_one_after_the_other(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    director = FakeDirector(state_dir)
    written: list[int] = []
    write = director.ipvs.write

    async def count(changes: Sequence[IpvsChange]) -> list[Failure[IpvsChange]]:
        written.append(len(changes))
        return await write(changes)

    monkeypatch.setattr(director.ipvs, "write", count)
    nodes = [f"10.0.{number >> 8}.{number & 255}" for number in range(1500)]
    plans = [plan(name, *nodes, vip=f"203.0.113.{last}") for last, name in enumerate("abcd", 1)]
    await director.start(*plans)
    assert len(director.kernel.virtual_servers) == 4
    assert max(written) <= 1501


async def test_a_standby_has_the_virtual_servers_and_no_address(state_dir: Path) -> None:
    director = await FakeDirector(state_dir).start(plan(), leading=False)
    assert (6, VIP, 80) in director.kernel.virtual_servers
    assert director.bound == set()
    assert director.daemons == {SyncDaemon(SyncRole.BACKUP, "eth0", 7)}
    assert director.routing.live.is_set()


async def test_roles_change_hands_with_addresses_and_daemons(state_dir: Path) -> None:
    director = await FakeDirector(state_dir).start(plan(), leading=False)
    await director.lead(True)
    assert (director.bound, director.daemons) == ({VIP}, {SyncDaemon(SyncRole.MASTER, "eth0", 7)})
    await director.lead(False)
    assert (director.bound, director.daemons) == (set(), {SyncDaemon(SyncRole.BACKUP, "eth0", 7)})
    assert (6, VIP, 80) in director.kernel.virtual_servers


async def test_with_mh_a_director_that_heard_of_nodes_one_by_one_has_them_in_the_order_of_one_that_starts(
    state_dir: Path,
) -> None:
    def with_mh(generation: int, *nodes: str) -> ServicePlan:
        made = plan("web", *nodes, generation=generation)
        [server] = made.virtual_servers
        return msgspec.structs.replace(made, virtual_servers=(msgspec.structs.replace(server, scheduler="mh"),))

    nodes = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    first = await FakeDirector(state_dir / "first").start(with_mh(1, *nodes[1:]))
    first.broadcaster.publish([with_mh(2, *nodes)])
    await first.routing.step()
    second = await FakeDirector(state_dir / "second").start(with_mh(1, *nodes))
    tables = [one.kernel.virtual_servers[6, VIP, 80].real_servers for one in (first, second)]
    assert list(tables[0]) == list(tables[1]) == [(it, 80) for it in reversed(nodes)]
    assert {it.method for it in tables[0].values()} == {DIRECT_ROUTING}


async def test_an_address_that_was_there_before_is_neither_bound_nor_removed(state_dir: Path) -> None:
    kernel = new_kernel()
    kernel.add_address("eth0", VIP, 32)
    kernel.add_link("eth1")
    kernel.add_address("eth1", VIP6, 64)
    director = await FakeDirector(state_dir, kernel).start(plan(), plan("other", "fd00::1", vip=VIP6))
    assert not [it for it in kernel.writes if isinstance(it, BindAddress)]
    assert director.announcer.announced == []
    await director.lead(False)
    await director.apply(ServicePlan(ObjectKey("default", "web"), 2))
    assert director.bound == {VIP}


async def test_a_restart_changes_nothing_until_the_role_is_known_to_be_another(state_dir: Path) -> None:
    first = await FakeDirector(state_dir).start(plan())
    first.kernel.writes.clear()
    again = await FakeDirector(state_dir, first.kernel).start(plan(), leading=None)
    assert again.bound == {VIP}
    await again.lead(True)
    assert first.kernel.writes == []
    await again.lead(False)
    assert again.bound == set()


@pytest.mark.parametrize(("leading", "bound"), [(True, {VIP}), (False, set()), (None, {VIP})])
async def test_before_there_are_plans_only_another_leader_takes_addresses_away(
    state_dir: Path, leading: bool | None, bound: set[str]
) -> None:
    first = await FakeDirector(state_dir).start(plan())
    again = await FakeDirector(state_dir, first.kernel).open()
    if leading is not None:
        again.routing.lead(leading)
    waiting = asyncio.create_task(again.routing.start())
    await asyncio.sleep(0.01)
    assert again.bound == bound
    again.routing.stop()
    await waiting


async def test_another_vip_interface_is_changed_to(state_dir: Path) -> None:
    kernel = new_kernel()
    kernel.add_link("eth1")
    setup = await FakeDirector(state_dir, kernel).open()
    setup.ledger.record([AddressMade("eth1", VIP), AddressMade("eth1", VIP6)])
    kernel.add_address("eth1", VIP, 32)
    director = await FakeDirector(state_dir, kernel).start(plan())
    assert (set(kernel.links["eth1"].addresses), director.bound) == (set(), {VIP})
    assert director.ledger.addresses == {("eth0", VIP)}


async def test_addresses_and_virtual_servers_that_no_plan_names_go_in_this_order(state_dir: Path) -> None:
    director = await FakeDirector(state_dir).start(plan(), plan("other", vip=VIP6))
    director.kernel.writes.clear()
    await director.apply(ServicePlan(ObjectKey("default", "web"), 2))
    assert director.bound == {VIP6}
    assert (6, VIP, 80) not in director.kernel.virtual_servers
    assert isinstance(director.kernel.writes[0], UnbindAddress)


async def test_a_taken_away_address_is_back_and_announced(state_dir: Path) -> None:
    director = await FakeDirector(state_dir).start(plan())
    director.kernel.delete_address("eth0", VIP)
    director.routing.notice(await director.monitor.next())
    await director.routing.step()
    assert director.bound == {VIP}
    assert director.announcer.announced[-1] == VIP
    assert director.routing.statistics().repairs == 1


async def test_between_resyncs_a_look_finds_what_others_have_changed(state_dir: Path) -> None:
    director = await FakeDirector(state_dir, budget=0.0).start(plan())
    await director.resync()
    whole = await director.ipvs.read()
    statistics = director.routing.statistics
    assert (statistics().resyncs, statistics().looks) == (1, 1)
    await director.ipvs.write([DeleteRealServer((6, VIP, 80), ("10.0.0.1", 80))])
    await director.resync()
    assert await director.ipvs.read() == whole
    assert (statistics().resyncs, statistics().repairs) == (2, 1)
    await director.ipvs.write([SetRealServer((6, VIP, 80), ("10.0.0.1", 80), 1, MASQUERADING)])
    await director.resync()
    assert await director.ipvs.read() == whole
    assert (statistics().resyncs, statistics().repairs) == (3, 2)
    director.kernel.delete_address("eth0", VIP)
    await director.resync()
    assert director.bound == {VIP}


async def test_an_address_that_a_renewal_has_brought_back_stays_ours(state_dir: Path) -> None:
    director = await FakeDirector(state_dir).start(plan())
    director.kernel.delete_address("eth0", VIP)
    await director.routing.vips.renew()
    director.routing.notice(await director.monitor.next())
    await director.routing.step()
    assert director.ledger.addresses == {("eth0", VIP)}
    await director.lead(False)
    assert director.bound == set()


async def test_lifetimes_are_renewed(state_dir: Path) -> None:
    director = await FakeDirector(state_dir).start(plan())
    director.kernel.writes.clear()
    await director.routing.vips.renew()
    assert director.kernel.writes == [RenewAddress(VIP, 20)]
    await director.lead(False)
    director.kernel.writes.clear()
    await director.routing.vips.renew()
    assert director.kernel.writes == []


@pytest.mark.parametrize("is_other_active", [False, True])
async def test_one_that_stood_still_for_a_lifetime_looks_at_the_lease_before_it_answers_for_vips_again(
    state_dir: Path, is_other_active: bool
) -> None:
    director = await FakeDirector(state_dir).start(plan())
    director.clock.now += 1
    asked_before = director.clock.now
    director.clock.now += 20
    director.kernel.delete_address("eth0", VIP)  # as its lifetime is over
    director.announcer.announced.clear()
    await director.routing.vips.renew()
    director.routing.notice(await director.monitor.next())
    await director.routing.step()
    director.routing.confirm(asked_before, True)
    await director.routing.step()
    assert (director.bound, director.announcer.announced) == (set(), [])
    director.clock.now += 1
    director.routing.confirm(director.clock.now, False)  # the API server does not answer yet
    await director.routing.step()
    assert (director.bound, director.announcer.announced) == (set(), [])
    if is_other_active:
        director.routing.lead(False)
    director.routing.confirm(director.clock.now, True)
    await director.routing.step()
    expected = [] if is_other_active else [VIP]
    assert (director.bound, director.announcer.announced) == (set(expected), expected)
    await director.routing.vips.renew()
    assert director.bound == set(expected)


async def test_one_that_stood_still_goes_on_when_the_lease_cannot_be_read_for_a_lifetime(state_dir: Path) -> None:
    """The API server is lost to all then, as far as anybody can know."""
    director = await FakeDirector(state_dir).start(plan())
    director.clock.now += 20
    director.kernel.delete_address("eth0", VIP)
    await director.routing.vips.renew()
    director.routing.notice(await director.monitor.next())
    for seconds, expected in ((0, set()), (19, set()), (1, {VIP})):
        director.clock.now += seconds
        director.routing.confirm(director.clock.now, False)
        await director.routing.step()
        assert director.bound == expected


async def test_a_refused_address_stops_no_other(state_dir: Path) -> None:
    kernel = new_kernel()
    kernel.refuse(lambda change: isinstance(change, BindAddress) and change.address == VIP, EIO)
    director = await FakeDirector(state_dir, kernel).start(plan(), plan("other", vip=VIP6))
    assert director.bound == {VIP6}
    kernel.accept_all()
    await director.resync()
    assert director.bound == {VIP, VIP6}


async def test_a_foreign_virtual_server_and_a_foreign_daemon_are_left_alone(state_dir: Path) -> None:
    kernel = new_kernel()
    foreign = SyncDaemon(SyncRole.MASTER, "eth0", 99)
    kernel.sync_daemons[SyncRole.MASTER] = foreign
    setup = FakeIpvs(kernel)
    await setup.open()
    await setup.write([AddVirtualServer((6, VIP, 80), VirtualServerOptions("lc"))])
    director = await FakeDirector(state_dir, kernel).start(plan())
    assert director.problems == [(ObjectKey("default", "web"), "ForeignVirtualServer")]
    assert director.bound == set()
    assert director.daemons == {foreign}
    assert kernel.virtual_servers[6, VIP, 80].options.scheduler == "lc"


async def test_without_a_synchronization_interface_there_is_no_daemon_and_its_sysctls_stay(state_dir: Path) -> None:
    director = await FakeDirector(state_dir, sync_interface="").start(plan())
    assert director.daemons == set()
    assert director.kernel.sysctls["net.ipv4.vs.sync_threshold"] == "3\t50"
    assert director.kernel.sysctls["net.ipv4.vs.expire_nodest_conn"] == "1"


async def test_cleanup_takes_away_what_only_a_director_has(state_dir: Path) -> None:
    first = await FakeDirector(state_dir).start(plan())
    first.kernel.add_address("eth0", "192.0.2.7", 24)
    after = await FakeDirector(state_dir, first.kernel).open()
    report = CleanupReport()
    await undo(Ledger.open(state_dir), after.clients.ipvs, after.clients.addresses, report)
    assert after.bound == {"192.0.2.7"}
    assert after.daemons == set()
    assert report.failed == []
    assert report.undone == [f"unbind {VIP}", "stop the IPVS master synchronization daemon on eth0"]
    ledger = Ledger.open(state_dir)
    assert (ledger.addresses, ledger.sync_daemons) == (set(), {})
    assert ledger.virtual_servers, "the node's cleanup needs them"
