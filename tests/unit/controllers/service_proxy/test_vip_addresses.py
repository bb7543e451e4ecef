"""VIPs that a reading of the kernel omits are not taken for missing."""

from pathlib import Path

from kroute.controllers.dummy_interface import DummyInterface
from kroute.controllers.live_addresses import LiveAddresses
from kroute.controllers.service_proxy.vip_addresses import VipAddresses
from kroute.model.plan import Vip
from kroute.reconcile.ledger import Ledger
from kroute.reconcile.pass_status import PassStatus
from kroute.reconcile.resync_schedule import DigestPace
from kroute.settings import Settings
from tests.fakes.addresses import FakeAddresses
from tests.fakes.links import FakeLinks
from tests.unit.fake_node import Clock, new_kernel


class Omitting(FakeAddresses):
    """Omits one address in each of its first readings, as a kernel whose list moves while it is read."""

    def __init__(self, *omitted: str) -> None:
        super().__init__(new_kernel())
        self.kernel.add_link("d0")
        self.omitted = list(omitted)
        self.readings = 0

    async def read(self, interface: str) -> set[str]:
        self.readings += 1
        left_out = {self.omitted.pop(0)} if self.omitted else set()
        return await super().read(interface) - left_out


async def learned(tmp_path: Path, addresses: Omitting, bound: set[str], known: set[str]) -> set[str]:
    """Return the VIPs that are known to be bound after a reading."""
    await addresses.open()
    for address in bound:
        addresses.kernel.add_address("d0", address, 32)
    interface = DummyInterface("d0", FakeLinks(addresses.kernel), Ledger.open(tmp_path))
    status = PassStatus("service_proxy", Clock())
    vips = VipAddresses(status, addresses, interface, DigestPace(Settings("node"), status.counters), LiveAddresses())
    for address in known:
        vips.desired.note_applied(address, Vip(address, None))
    await vips.learn()
    return set(vips.desired.applied)


async def test_what_one_reading_omits_the_next_one_finds(tmp_path: Path) -> None:
    vips = {"10.96.0.1", "10.96.0.2", "10.96.0.3"}
    addresses = Omitting("10.96.0.1", "10.96.0.2")
    assert await learned(tmp_path, addresses, vips, vips) == vips


async def test_what_is_gone_costs_one_more_reading(tmp_path: Path) -> None:
    addresses = Omitting()
    assert await learned(tmp_path, addresses, {"10.96.0.1"}, {"10.96.0.1", "10.96.0.2"}) == {"10.96.0.1"}
    assert addresses.readings == 2


async def test_a_whole_reading_is_the_only_one(tmp_path: Path) -> None:
    addresses = Omitting()
    assert await learned(tmp_path, addresses, {"10.96.0.1"}, {"10.96.0.1"}) == {"10.96.0.1"}
    assert addresses.readings == 1
