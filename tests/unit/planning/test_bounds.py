"""How much one Service may ask for, and in which pieces it is planned. The tests count work, and do not time it."""

from collections import Counter
from typing import Any

import pytest

from kroute.model.objects import Applied, Deleted, EndpointPort, EndpointSlice, KubernetesObject, Service
from kroute.model.plan import MOST_PROBLEMS, AddressSet, RealServer, ServicePlan
from kroute.model.steps import UNITS_A_STEP, Steps, sort
from kroute.planning.address_conflicts import AddressClaims, Claimant
from kroute.planning.address_owners import MOST_ADDRESSES
from kroute.planning.backend_slices import LARGE_SLICE, read_slice
from kroute.planning.catalog import Catalog
from kroute.planning.endpoints import Chosen
from kroute.planning.features.source_ranges import MOST_RANGE_ENTRIES, MOST_RANGES
from kroute.planning.features.weights.rule import Weighing
from kroute.planning.plan_service import NOTHING_HELD, planning
from tests.builders import (
    NODE_IPV4,
    endpoint,
    endpoint_slice,
    facts,
    finish,
    plan_service,
    port,
    read,
    service,
    settings,
)
from tests.unit.planning.test_catalog import listed, served

HERE = facts(own=(NODE_IPV4,))
VICTIM = service("victim", "10.96.0.20", created="2026-01-03T00:00:00Z")
VICTIMS_SLICE = endpoint_slice("victim-1", "10.244.1.9", of="victim")


def external(count: int) -> list[str]:
    return [f"198.51.{number // 250}.{number % 250 + 1}" for number in range(count)]


def numbered(count: int, **fields: Any) -> list[Any]:
    return [port(number + 1, f"p{number}", **fields) for number in range(count)]


def backend_ports(count: int) -> list[EndpointPort]:
    return [EndpointPort(it.name, it.port) for it in numbered(count)]


def reasons(plan: ServicePlan) -> list[str]:
    return [problem.reason for problem in plan.problems]


def plan(of: Service, *slices: EndpointSlice, **changes: object) -> ServicePlan:
    return plan_service(of, read(*slices), HERE, settings(**changes))


class TestVirtualServers:
    GREEDY = service("web", "10.96.0.10", ports=numbered(1000), external_ips=external(1000))

    def test_there_are_so_many_and_one_problem_says_how_many_were_asked_for(self) -> None:
        found = plan(self.GREEDY)
        assert len(found.virtual_servers) == 5000
        [problem] = found.problems
        assert problem.reason == "TooManyVirtualServers"
        assert problem.message.startswith("1001000 virtual servers are asked for: 1000 ports on 1001 addresses")
        assert "At most 5000" in problem.message
        assert "--max-virtual-servers" in problem.message

    def test_cluster_ips_and_node_ports_come_first(self) -> None:
        ports = [port(80 + number, f"p{number}", node_port=30000 + number) for number in range(3)]
        greedy = service("web", "10.96.0.10", kind="NodePort", ports=ports, external_ips=external(2))
        found = served(plan(greedy, max_virtual_servers=7))
        assert found == [
            *[f"TCP 10.96.0.10:{80 + number}" for number in range(3)],
            *[f"TCP {NODE_IPV4}:{30000 + number}" for number in range(3)],
            "TCP 198.51.0.1:80",
        ]

    def test_what_is_allowed_is_no_problem(self) -> None:
        found = plan(service("web", ports=numbered(5), external_ips=external(1)), max_virtual_servers=10)
        assert (len(found.virtual_servers), found.problems) == (10, ())

    @pytest.mark.parametrize("count", [MOST_ADDRESSES + 1, 60_000])
    def test_so_many_addresses_are_looked_at(self, count: int) -> None:
        found = plan(service("web", external_ips=["bad"] * count))
        assert reasons(found) == ["TooManyVirtualServers", "InvalidExternalIP"]
        catalog = listed(service("web", external_ips=external(count)))
        assert len(catalog.plans[service("web").key].vips) == MOST_ADDRESSES + 1

    def test_so_many_ports_are_looked_at(self) -> None:
        found = plan(service("web", ports=[port(-number) for number in range(60_000)]))
        assert found.virtual_servers == ()
        assert len(found.problems) == MOST_PROBLEMS + 1


class TestBackends:
    def test_endpoints_times_ports_are_bounded(self) -> None:
        ports = numbered(100)
        addresses = [f"10.244.{number // 250}.{number % 250 + 1}" for number in range(1000)]
        pieces = [
            endpoint_slice(f"web-{number}", *addresses[number : number + 100], ports=backend_ports(100))
            for number in range(0, 1000, 100)
        ]
        found = plan(service("web", ports=ports), *pieces)
        assert sum(len(server.real_servers) for server in found.virtual_servers) == 50_000
        assert reasons(found) == ["TooManyBackends"]
        assert found.problems[0].subject == "50000 real servers"

    def test_virtual_servers_that_share_endpoints_count_each(self) -> None:
        greedy = service("web", "10.96.0.10", ports=[80, 81], external_ips=external(3))
        found = plan(
            greedy, endpoint_slice("web-1", *[f"10.244.1.{number}" for number in range(1, 11)]), max_backends=45
        )
        assert served(found) == [
            *("TCP 10.96.0.10:80", "TCP 10.96.0.10:81"),
            *("TCP 198.51.0.1:80", "TCP 198.51.0.1:81"),
        ]
        assert [problem.subject for problem in found.problems] == ["40 real servers"]
        assert {vip.address for vip in found.vips} == {"10.96.0.10", "198.51.0.1"}

    def test_what_has_no_room_is_not_weighed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        weighed: list[int] = []
        weigh = Weighing.weigh

        def counted(self: Weighing, chosen: Chosen, servers: tuple[RealServer, ...]) -> Steps[tuple[RealServer, ...]]:
            weighed.append(len(chosen))
            return weigh(self, chosen, servers)

        monkeypatch.setattr(Weighing, "weigh", counted)
        greedy = service("web", external_ips=external(1), annotations={"kroute.io/weights": "node/n1=3"})
        pods = endpoint_slice("web-1", *[f"10.244.1.{last}" for last in range(1, 21)])
        assert len(plan(greedy, pods, max_backends=30).virtual_servers) == 1
        assert weighed == [20]
        assert len(plan(greedy, pods, max_backends=40).virtual_servers) == 2
        assert weighed == [20] * 3

    def test_an_address_whose_source_ranges_do_not_fit_is_closed_not_open(self) -> None:
        ranges = [f"10.{number // 250}.{number % 250}.0/24" for number in range(MOST_RANGES)]
        fitting = MOST_RANGE_ENTRIES // MOST_RANGES
        of = service(
            "web",
            kind="LoadBalancer",
            balanced=["198.51.100.1"],
            ports=numbered(fitting + 2),
            load_balancer_source_ranges=ranges,
        )
        found = plan(of, endpoint_slice("web-1", "10.244.1.1", ports=backend_ports(fitting + 2)))
        balanced = [it.key for it in found.virtual_servers if it.key.address == "198.51.100.1"]
        assert (len(balanced), len(found.virtual_servers)) == (fitting, 2 * fitting + 2)
        restricted = [entry.element for entry in found.set_entries if entry.set is AddressSet.RESTRICTED]
        assert sorted(restricted) == sorted((it.address, it.protocol, it.port) for it in balanced)
        assert Counter(entry.set for entry in found.set_entries)[AddressSet.SOURCE_RANGE] == MOST_RANGE_ENTRIES
        assert [(it.reason, it.subject) for it in found.problems] == [
            ("TooManySourceRanges", f"{2 * MOST_RANGES} loadBalancerSourceRanges times ports")
        ]

    def test_fifty_ports_may_have_a_thousand_source_ranges(self) -> None:
        ranges = [f"10.{number // 250}.{number % 250}.0/24" for number in range(1000)]
        of = service(
            "web",
            kind="LoadBalancer",
            balanced=["198.51.100.1"],
            ports=numbered(50),
            load_balancer_source_ranges=ranges,
        )
        found = plan(of, endpoint_slice("web-1", "10.244.1.1", ports=backend_ports(50)))
        assert Counter(entry.set for entry in found.set_entries)[AddressSet.SOURCE_RANGE] == 50_000
        assert found.problems == ()

    def test_so_many_source_ranges_are_looked_at(self) -> None:
        ranges = [f"10.{number // 250}.{number % 250}.0/24" for number in range(5000)]
        of = service("web", kind="LoadBalancer", balanced=["198.51.100.1"], load_balancer_source_ranges=ranges)
        found = plan(of, endpoint_slice("web-1", "10.244.1.1"))
        assert Counter(entry.set for entry in found.set_entries)[AddressSet.SOURCE_RANGE] == MOST_RANGES
        assert reasons(found) == ["TooManySourceRanges"]

    def test_a_large_slice_is_kept_as_its_endpoints_and_ports(self) -> None:
        addresses = [f"10.244.{number // 250}.{number % 250 + 1}" for number in range(1000)]
        few, many = (backend_ports(count) for count in (10, 11))
        small, large = (read_slice(endpoint_slice("web-1", *addresses, ports=ports)) for ports in (few, many))
        assert [sum(len(it.real_servers) for it in piece.ports) for piece in (small, large)] == [LARGE_SLICE, 0]
        for piece in (small, large):
            assert [it.address for it in piece.real_servers(piece.ports[3], 5)] == sorted(addresses)[:5]

    def test_hairpin_entries_are_bounded_with_them(self) -> None:
        local = [endpoint(f"10.244.1.{number}", on=HERE.name) for number in range(1, 101)]
        found = plan(service("web", ports=[80, 81]), endpoint_slice("web-1", *local), max_backends=100)
        assert Counter(entry.set for entry in found.set_entries)[AddressSet.HAIRPIN] == 100


class TestProblems:
    def test_a_plan_has_so_many_and_the_number_of_the_rest(self) -> None:
        found = plan(service("web", external_ips=[f"bad{number}" for number in range(500)]))
        assert len(found.problems) == MOST_PROBLEMS + 1
        assert found.problems[-1].message.startswith(f"{500 - MOST_PROBLEMS} further problems")


def pieces(catalog: Catalog, work: int) -> list[list[ServicePlan]]:
    found = []
    while catalog.has_marked:
        found.append([it for it in catalog.plan_marked(64, work) if isinstance(it, ServicePlan)])
    return found


class TestSteps:
    GREEDY = service("greedy", ports=numbered(1000), external_ips=external(1000))

    def test_no_step_is_long(self) -> None:
        slices = read(endpoint_slice("web-1", *[f"10.244.1.{number}" for number in range(1, 101)], of="greedy"))
        steps = [*planning(self.GREEDY, slices, HERE, settings(), NOTHING_HELD, None)]
        assert max(steps) <= UNITS_A_STEP
        assert sum(steps) > 5000

    def test_source_ranges_are_cut_in_steps(self) -> None:
        ranges = [f"2001:db8:{number:x}::/61" for number in range(MOST_RANGES)]
        of = service(
            *("web", "10.96.0.10", "fd00:96::a"),
            kind="LoadBalancer",
            balanced=["2001:db8::1"],
            load_balancer_source_ranges=ranges,
        )
        cut = [*planning(of, [], facts(), settings(), NOTHING_HELD, None)]
        assert max(cut) <= UNITS_A_STEP + 1
        assert len(cut) > MOST_RANGES

    def test_a_large_service_takes_many_pieces_and_says_nothing_before_the_last(self) -> None:
        catalog = listed(max_virtual_servers=1000)
        catalog.take([Applied(self.GREEDY)])
        *before, last = pieces(catalog, 400)
        assert len(before) >= 3
        assert not any(before)
        assert [it.key.name for it in last] == ["greedy"]

    def test_pieces_make_the_same_plans(self) -> None:
        items: list[KubernetesObject] = [self.GREEDY, VICTIM, VICTIMS_SLICE]
        whole, sliced = listed(*items, max_virtual_servers=1000), listed(max_virtual_servers=1000)
        sliced.take(map(Applied, items))
        pieces(sliced, 100)
        assert {key: it.same_as(whole.plans[key]) for key, it in sliced.plans.items()} == dict.fromkeys(
            [self.GREEDY.key, VICTIM.key], True
        )

    def test_a_change_in_the_middle_counts_afterwards(self) -> None:
        catalog = listed(max_virtual_servers=1000)
        catalog.take([Applied(self.GREEDY)])
        assert catalog.plan_marked(64, 1) == []
        catalog.take([Deleted(Service, self.GREEDY.key), Applied(VICTIM)])
        plans = [it for piece in pieces(catalog, 2000) for it in piece]
        assert [(it.key.name, it.is_empty) for it in plans] == [("greedy", False), ("greedy", True), ("victim", False)]

    @pytest.mark.parametrize("count", [0, 1, UNITS_A_STEP, UNITS_A_STEP * 3 + 7])
    def test_sorting(self, count: int) -> None:
        items = [number * 7919 % (count or 1) for number in range(count)]
        assert finish(sort(items)) == sorted(items)


class Created(str):  # noqa: SLOT000
    """A creation time that counts its comparisons."""

    compared = 0

    def __lt__(self, other: str) -> bool:
        Created.compared += 1
        return str.__lt__(self, other)

    __hash__ = str.__hash__


RIVALS = [
    service(
        f"rival-{number}",
        f"10.97.{number // 250}.{number % 250}",
        external_ips=["198.51.100.1"],
        created=f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z",
    )
    for number in range(1000)
]


class TestManyServicesWithOneAddress:
    def test_the_next_one_gets_it_in_the_same_slice_and_the_others_are_told_in_later_ones(self) -> None:
        catalog = listed(*RIVALS, VICTIM, VICTIMS_SLICE)
        catalog.take([Deleted(Service, RIVALS[0].key)])
        first, *others = filter(None, pieces(catalog, 800))
        assert {it.key.name for it in first} == {"rival-0", "rival-1"}
        assert [it.key for piece in (first, *others) for it in piece if it.virtual_servers and it.vips[1:]] == [
            RIVALS[1].key
        ]
        assert max(map(len, others)) <= 64
        assert sum(map(len, others)) == len(RIVALS) - 2
        assert all("default/rival-1 has it" in it.problems[0].message for piece in others for it in piece)

    @pytest.mark.parametrize("is_reversed", [False, True])
    def test_a_claim_costs_the_logarithm_of_their_number(self, is_reversed: bool) -> None:
        claims = AddressClaims()
        [key] = [it.key for it in plan(RIVALS[0]).virtual_servers if it.key.address == "198.51.100.1"]
        ranks = [Claimant(0, False, Created(it.metadata.creation_timestamp), it.key) for it in RIVALS]
        Created.compared = 0
        for rank in reversed(ranks) if is_reversed else ranks:
            claims.claim(rank, {key: 0})
        for rank in ranks:
            claims.withdraw(rank.key)
        assert Created.compared < 2 * len(ranks).bit_length() * len(ranks)
        assert claims.holder(key) is None
