"""The contract of every firewall backend, on a real kernel and on a fake one, and of the fake firewall.

A subclass provides the fixture `firewall`: tests/kernel/test_firewall.py on a real kernel, tests/unit/firewall/
test_contracts.py in memory.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from kroute.controllers.masquerade import Masquerade
from kroute.firewall.packet_trace import Ending, Packet
from kroute.firewall.protocol import Firewall
from kroute.firewall.sets import SHAPES, Capacity, ElementPart, Room, Sets
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import ObjectKey
from kroute.model.plan import AddressSet, ServicePlan, SetEntry
from kroute.reconcile.batches import sliced
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.controller import Shared
from kroute.reconcile.stage_gate import ENTRIES_PREPARED, WITHDRAWN, StageGate
from kroute.settings import Exemption, Settings
from tests.builders import say
from tests.fakes.firewall_rules import FakeRules
from tests.unit.fake_node import node_plan, plan, server

NODE = NodeFacts("node1", "192.168.9.1", "fd99::1", pod_cidrs=("172.20.1.0/24", "fd00:20:0:1::/64"))
PORT, PORT6 = ("10.96.0.1", 6, 80), ("fd00:96::1", 17, 53)
ONE_OF_EACH = [
    *(
        SetEntry(which, port)
        for port in (PORT, PORT6)
        for which in (
            AddressSet.CLUSTER_IP,
            AddressSet.EXTERNAL,
            AddressSet.EXTERNAL_LOCAL,
            AddressSet.NO_LOCAL,
            AddressSet.NO_ENDPOINT,
            AddressSet.RESTRICTED,
            AddressSet.HEALTH_CHECK,
        )
    ),
    SetEntry(AddressSet.SOURCE_RANGE, (*PORT, "203.0.113.0/24")),
    SetEntry(AddressSet.SOURCE_RANGE, (*PORT6, "2001:db8::/32")),
    SetEntry(AddressSet.HAIRPIN, ("172.20.1.5", 6, 8080, "172.20.1.5")),
    SetEntry(AddressSet.HAIRPIN, ("fd00:20:0:1::5", 17, 53, "fd00:20:0:1::5")),
    SetEntry(AddressSet.VIP, ("10.96.0.1",)),
    SetEntry(AddressSet.VIP, ("fd00:96::1",)),
    SetEntry(AddressSet.POD_NETWORK, ("172.20.1.0/24",)),
    SetEntry(AddressSet.POD_NETWORK, ("fd00:20:0:1::/64",)),
]
SMALL = Room(first=64, most=256)
"""Of the fixture `small`. The kernel rounds nothing, but its hash sets refuse an element at exactly this number."""
MISSHAPEN = [
    SetEntry(AddressSet.VIP, PORT),
    SetEntry(AddressSet.CLUSTER_IP, ("10.96.0.1",)),
    SetEntry(AddressSet.HAIRPIN, PORT),
    SetEntry(AddressSet.SOURCE_RANGE, PORT),
]


LARGE_PORTS = [("203.0.113.1", 6, port) for port in range(1, 6)]
LARGE = ServicePlan(
    ObjectKey("default", "large"),
    1,
    set_entries=(
        *(SetEntry(AddressSet.RESTRICTED, port) for port in LARGE_PORTS),
        *(
            SetEntry(AddressSet.SOURCE_RANGE, (*port, f"10.{number}.0.0/16"))
            for port in LARGE_PORTS
            for number in range(250)
        ),
        *(SetEntry(AddressSet.NO_ENDPOINT, ("203.0.113.1", 17, port)) for port in range(1, 1000)),
    ),
)
"""Nine batches."""


class Watched:
    """A firewall that calls `after_batch` after each batch of changes."""

    def __init__(self, firewall: Firewall) -> None:
        self._firewall = firewall
        self.after_batch: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._firewall, name)

    async def change_elements(self, changes: Mapping[SetEntry, bool]) -> Mapping[SetEntry, str]:
        refused = await self._firewall.change_elements(changes)
        self.after_batch()
        return refused


async def everything(firewall: Firewall) -> list[SetEntry]:
    return sorted([entry async for part in firewall.elements() for entry in part])


class FirewallContract:
    async def test_every_missing_set_is_made_and_reported_once(self, firewall: Firewall) -> None:
        assert not await firewall.is_present()
        assert firewall.capacity(Family.IPV4, AddressSet.VIP) is None
        assert len(await firewall.ensure_sets()) == 2 * len(AddressSet)
        assert await firewall.ensure_sets() == []
        assert await firewall.is_present()
        assert await everything(firewall) == []

    async def test_elements_of_every_shape_are_read_back(self, firewall: Firewall) -> None:
        await firewall.ensure_sets()
        assert await firewall.change_elements(dict.fromkeys(ONE_OF_EACH, True)) == {}
        assert await everything(firewall) == sorted(ONE_OF_EACH)
        for family in Family:
            sets = await firewall.read_sets(family)
            found = [SetEntry(which, element) for which, elements in sets.items() for element in elements]
            assert sorted(found) == sorted(it for it in ONE_OF_EACH if it.family is family)
        assert await firewall.read_sets(Family.IPV4, [AddressSet.VIP]) == {AddressSet.VIP: {("10.96.0.1",)}}

    async def test_what_is_so_already_is_no_failure(self, firewall: Firewall) -> None:
        await firewall.ensure_sets()
        there, absent = ONE_OF_EACH[:2]
        for _ in range(2):
            assert await firewall.change_elements({there: True, absent: False}) == {}
        assert await everything(firewall) == [there]

    @pytest.mark.parametrize("entry", MISSHAPEN, ids=lambda entry: entry.set)
    async def test_an_element_of_another_shape_is_refused_and_stops_no_other(
        self, firewall: Firewall, entry: SetEntry
    ) -> None:
        await firewall.ensure_sets()
        good = ONE_OF_EACH[0]
        refused = await firewall.change_elements({entry: True, good: True})
        assert list(refused) == [entry]
        assert refused[entry].startswith("cannot ")
        assert await everything(firewall) == [good]

    async def test_a_full_set_grows_under_its_rules_and_refuses_what_is_too_much_for_the_largest(
        self, small: Firewall
    ) -> None:
        """A backend whose sets have all their room from the start has nothing to grow."""
        await small.ensure_sets()
        await small.ensure_rules(NODE)
        largest = Capacity(SMALL.most, SMALL.most)
        first = small.capacity(Family.IPV4, AddressSet.RESTRICTED)
        assert first in {Capacity(SMALL.first, SMALL.most), largest}
        ports = [SetEntry(AddressSet.RESTRICTED, ("10.96.0.1", 6, port)) for port in range(1, SMALL.most + 11)]
        fit, surplus = ports[: SMALL.most], ports[SMALL.most :]
        for start in range(0, SMALL.most, 100):
            assert await small.change_elements(dict.fromkeys(fit[start : start + 100], True)) == {}
        assert small.capacity(Family.IPV4, AddressSet.RESTRICTED) == largest
        other = ONE_OF_EACH[0]
        refused = await small.change_elements(dict.fromkeys([*surplus, other], True))
        assert list(refused) == surplus
        assert all(sentence.endswith("the set is full") for sentence in refused.values())
        assert await everything(small) == sorted([*fit, other])
        assert await small.ensure_sets() == [], "a set that has grown is right"
        assert small.capacity(Family.IPV4, AddressSet.RESTRICTED) == largest
        assert small.capacity(Family.IPV4, other.set) == small.capacity(Family.IPV6, AddressSet.RESTRICTED) == first
        assert [await small.rule_differences(family, NODE) for family in Family] == [[], []]

    async def test_without_its_set_an_element_is_refused(self, firewall: Firewall) -> None:
        assert list(await firewall.change_elements({ONE_OF_EACH[0]: True})) == [ONE_OF_EACH[0]]
        assert await firewall.read_sets(Family.IPV4) == {}

    async def test_rules_are_written_once_and_again_for_other_facts_which_is_no_drift(self, firewall: Firewall) -> None:
        await firewall.ensure_sets()
        for node in (NODE, NODE, NodeFacts("node1", "192.168.9.2")):
            assert await firewall.ensure_rules(node) == []
            assert [await firewall.rule_differences(family, node) for family in Family] == [[], []]

    async def test_what_is_not_written_yet_differs(self, firewall: Firewall) -> None:
        await firewall.ensure_sets()
        assert all([await firewall.rule_differences(family, NODE) for family in Family])

    async def test_removal_leaves_nothing_and_can_be_repeated(self, firewall: Firewall) -> None:
        await firewall.ensure_sets()
        await firewall.change_elements(dict.fromkeys(ONE_OF_EACH, True))
        await firewall.ensure_rules(NODE)
        first, second = CleanupReport(), CleanupReport()
        await firewall.remove(first)
        await firewall.remove(second)
        assert first.undone
        assert first.failed == second.failed == second.undone == []
        assert not await firewall.is_present()

    async def test_a_service_with_many_source_ranges_holds_up_no_other_one_neither_when_it_comes_nor_when_it_goes(
        self, firewall: Firewall
    ) -> None:
        """A small plan that arrives after the third batch is prepared by the sixth one, before the large one."""
        watched, broadcaster, gate = Watched(firewall), Broadcaster(), StageGate()
        shared = Shared(SETTINGS[0], broadcaster, lambda *_: None, gate=gate)
        gate.join(asyncio.Event(), says={WITHDRAWN: lambda _: False})
        masquerade = Masquerade(shared, watched)
        broadcaster.publish([node_plan()])
        await masquerade.start()
        await masquerade.step()
        victims = [plan(f"victim-{it}", it, server(f"10.96.0.{it}", 80, "10.1.0.1")) for it in (3, 4)]
        for large, small in zip((LARGE, ServicePlan(LARGE.key, 2)), victims, strict=True):
            prepared: list[bool] = []

            def after_batch() -> None:
                prepared.append(gate.has_passed(small, ENTRIES_PREPARED))  # noqa: B023
                if len(prepared) == 3:  # noqa: B023
                    broadcaster.publish([small])  # noqa: B023

            watched.after_batch = after_batch
            broadcaster.publish([large])
            say(gate, WITHDRAWN, [large])
            await masquerade.step()
            assert prepared.index(True) < 6 < len(prepared)
            await masquerade.step()
        wanted = {entry for victim in victims for entry in victim.set_entries}
        assert set(await everything(firewall)) == wanted

    async def test_a_source_range_costs_no_more_than_another_element_however_many_there_are(
        self, firewall: Firewall
    ) -> None:
        """As concatenations of intervals in nf_tables these took eighty times as long."""
        await firewall.ensure_sets()
        pods = [f"10.{number // 250}.{number % 250}.1" for number in range(5000)]
        hairpins = [SetEntry(AddressSet.HAIRPIN, (it, 6, 80, it)) for it in pods]
        ranges = [
            SetEntry(AddressSet.SOURCE_RANGE, (*port, f"10.{number // 250}.{number % 250}.0/24"))
            for port in LARGE_PORTS
            for number in range(1000)
        ]
        took: list[float] = []
        for entries in (hairpins, ranges):
            begin = time.process_time()
            for is_wanted in (True, False):
                async for part in sliced(entries):
                    assert await firewall.change_elements(dict.fromkeys(part, is_wanted)) == {}
            took.append(time.process_time() - begin)
        assert took[1] < 5 * took[0]

    async def test_the_kernel_here_has_all_that_is_needed(self, firewall: Firewall) -> None:
        assert (await firewall.prerequisites()).missing == {family: [] for family in Family}


SETTINGS = [
    Settings("node1"),
    Settings("node1", cluster_cidrs=("172.20.0.0/16", "fd00:20::/48")),
    Settings("node1", detect_local_mode="NodeCIDR", snat_source="node-ip"),
    Settings("node1", detect_local_mode="BridgeInterface", pod_bridge_interface="cbr0"),
    Settings("node1", detect_local_mode="InterfaceNamePrefix", pod_interface_name_prefix="cb"),
    Settings("node1", masquerade_all=True, masquerade_exemptions=(Exemption("192.0.2.0/24", "10.96.0.0/16"),)),
]
PORTS = [("10.96.0.1", 6, 80), ("10.96.0.1", 17, 80), ("10.96.0.2", 6, 80)]
SOURCES = ["192.0.2.1", "203.0.113.9", "172.20.1.5", "192.168.9.1"]
OF_PORTS = [which for which, shape in SHAPES.items() if shape == (ElementPart.ADDRESS, ElementPart.PORT)]
SETS: st.SearchStrategy[Sets] = st.fixed_dictionaries(
    {which: st.sets(st.sampled_from(PORTS)) for which in OF_PORTS}
    | {
        AddressSet.SOURCE_RANGE: st.sets(
            st.sampled_from(
                [(*port, it) for port in PORTS for it in ("203.0.113.0/24", "203.0.112.0/21", "192.0.2.1/32")]
            )
        ),
        AddressSet.HAIRPIN: st.sets(st.just(("172.20.1.5", 6, 8080, "172.20.1.5"))),
        AddressSet.VIP: st.sets(st.sampled_from([("10.96.0.1",), ("10.96.0.2",)])),
        AddressSet.POD_NETWORK: st.sets(st.just(("172.20.0.0/16",))),
    }
)
PACKETS = st.builds(
    lambda port, source, interface: Packet(port[1], source, port[0], port[2], interface),
    st.sampled_from(PORTS),
    st.sampled_from(SOURCES),
    st.sampled_from(["", "eth0", "cbr0"]),
)
REAL_SERVERS = [("172.20.1.5", 8080), ("172.20.2.5", 8080)]


of_each_backend = examples(suppress_health_check=[HealthCheck.differing_executors])
"""Several subclasses run the same property, which Hypothesis would otherwise take for a mistake."""


class RulesContract:
    """Needs no kernel: a subclass provides `rules_of`, which returns the rules of a backend."""

    @of_each_backend
    @given(st.sampled_from(SETTINGS), PACKETS, SETS, st.booleans())
    def test_a_packet_fares_as_the_policy_says(
        self, settings: Settings, packet: Packet, sets: Sets, has_virtual_server: bool
    ) -> None:
        rules, policy = self.rules_of(settings, Family.IPV4, NODE), FakeRules(settings, Family.IPV4, NODE)
        found = rules.admission(packet, sets, has_virtual_server=has_virtual_server)
        assert found.ending is policy.admission(packet, sets, has_virtual_server=has_virtual_server).ending
        assert found.ending is Ending.NONE or found.why

    @of_each_backend
    @given(st.sampled_from(SETTINGS), PACKETS, SETS)
    def test_a_packet_leaves_with_the_source_that_the_policy_says(
        self, settings: Settings, packet: Packet, sets: Sets
    ) -> None:
        rules, policy = self.rules_of(settings, Family.IPV4, NODE), FakeRules(settings, Family.IPV4, NODE)
        found, wanted = (it.sources(packet, REAL_SERVERS, sets) for it in (rules, policy))
        assert [it[:2] for it in found] == [it[:2] for it in wanted]
        assert all(it.is_kept or it.why for it in found)
