"""What one Service may cost a director, whatever it says, and what it may take from the others."""

import asyncio
import gc
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from kroute.director import addresses
from kroute.director import wiring as director_module
from kroute.director.catalog import DirectorCatalog
from kroute.director.lease import DirectorIdentity
from kroute.director.plan import MOST_CHECKS
from kroute.director.probes import MOST_A_SECOND, NodeProbes
from kroute.director.settings import DirectorSettings
from kroute.director.wiring import Director
from kroute.http.probes import FIRST_RESULTS_WITHIN
from kroute.kernel.net.addresses import RenewAddress
from kroute.model.node_facts import NodeFacts, NodeInterfaces
from kroute.model.objects import Applied, EndpointSlice, Listed, Node, Service
from kroute.model.plan import Protocol, ServicePlan
from kroute.model.probes import Probe, ProbeKind, ProbeSettings
from kroute.model.steps import UNITS_A_STEP, Steps
from kroute.reconcile.batches import in_turns
from kroute.reconcile.ledger import Ledger
from kroute.telemetry.spam_filter import BURST
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.authentication.configuration import Credentials
from tests.builders import endpoint_slice, finish, node, planned, port, service, settings
from tests.fakes.node_kernel import open_fake_kernel
from tests.unit.director.test_direct_routing import FakeDirector, new_kernel
from tests.unit.director.test_direct_routing import plan as plan_of_one
from tests.unit.planning.test_bounds import numbered
from tests.unit.watching import running
from tests.virtual_time import virtual

VIP = "198.51.100.1"
SETTINGS = settings(scheduler="wrr", external_ip_ranges=("198.51.100.0/24",))


def nodes(count: int) -> list[Node]:
    return [
        node(("InternalIP", f"192.168.{number // 250}.{number % 250 + 1}"), name=f"n{number}", ready=True)
        for number in range(count)
    ]


def catalog(*items: Node | Service | EndpointSlice, **changes: object) -> DirectorCatalog:
    made = DirectorCatalog(settings(scheduler="wrr", external_ip_ranges=("198.51.100.0/24",), **changes), NodeFacts(""))
    made.take([*map(Applied, items), *map(Listed, (Service, EndpointSlice, Node))])
    return made


def only(plans: Sequence[ServicePlan]) -> ServicePlan:
    [plan] = plans
    return plan


def size(plan: ServicePlan) -> int:
    return sum(len(server.real_servers) for server in plan.virtual_servers)


def with_node_ports(count: int, **spec: Any) -> Service:
    ports = [port(80 + number, f"p{number}", node_port=30000 + number) for number in range(count)]
    return service("web", external_ips=[VIP], kind="NodePort", ports=ports, **spec)


LARGE = service("web", external_ips=[VIP], ports=numbered(1000))


class Ports(tuple[Any, ...]):  # noqa: SLOT001
    """A Service's ports that count how often one of them is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Any]:
        for each in tuple.__iter__(self):
            self.looks += 1
            yield each


def looks(count: int) -> int:
    """How often a port of a Service with so many is looked at."""
    item = with_node_ports(count)
    ports = Ports(item.spec.ports or ())
    spec = msgspec.structs.replace(item.spec, ports=ports)
    planned(catalog(msgspec.structs.replace(item, spec=spec), *nodes(10)))
    return ports.looks


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """A collection takes as long as all that the other tests have left behind."""
    gc.disable()
    yield
    gc.enable()


class TestSteps:
    @pytest.mark.usefixtures("_no_collection")
    def test_no_step_is_long_however_many_ports_and_nodes_there_are(self) -> None:
        made = catalog(LARGE, *nodes(40))
        steps = made.planning_marked()
        units, times = [], []
        while True:
            began = time.process_time()
            try:
                units.append(next(steps))
            except StopIteration as end:
                plan = only(end.value)
                break
            finally:
                times.append(time.process_time() - began)
        assert size(plan) == 40_000
        assert max(units) <= 2 * UNITS_A_STEP
        assert sum(units) > 30_000
        assert max(times) < sum(times) / 2

    def test_ports_do_not_multiply_with_each_other(self) -> None:
        assert looks(400) < 3 * looks(200)

    async def test_lifetimes_of_vips_are_renewed_meanwhile(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        director = await FakeDirector(tmp_path).start(plan_of_one("victim", "10.0.0.1"))
        renewed = 0

        async def write(_interface: str, changes: Sequence[object]) -> list[object]:
            nonlocal renewed
            renewed += any(isinstance(it, RenewAddress) for it in changes)
            return []

        monkeypatch.setattr(director.addresses, "write", write)
        monkeypatch.setattr(addresses, "RENEWALS_A_LIFETIME", 1 << 60)
        made, turns = catalog(LARGE, *nodes(40)), 0

        def counted() -> Steps[list[ServicePlan]]:
            nonlocal turns
            steps = made.planning_marked()
            while True:
                try:
                    yield next(steps)
                except StopIteration as end:
                    return list(end.value)
                turns += 1

        async with running(director.routing.vips.keep_alive()):
            await asyncio.sleep(0)
            assert size(only(await in_turns(counted()))) == 40_000
        assert renewed >= turns // 3 >= 10

    def test_nodes_that_come_and_go_mark_the_services_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made, asked = catalog(LARGE), []
        with_external_ips = made.owners.with_external_ips
        monkeypatch.setattr(made.owners, "with_external_ips", lambda: asked.append(1) or with_external_ips())
        made.take([Applied(it) for it in nodes(300)])
        assert size(only(planned(made))) == 50_000 // 300 * 300
        assert len(asked) == 1

    def test_what_comes_between_two_steps_disturbs_none(self) -> None:
        pieces = [endpoint_slice(f"web-{number}", f"10.244.1.{number}") for number in range(1, 5)]
        large = service("web", external_ips=[VIP], ports=numbered(300), external_traffic_policy="Local")
        made = catalog(large, *pieces[:2], *nodes(20))
        steps = made.planning_marked()
        others = iter((*pieces[2:], *nodes(30), service("other", external_ips=["198.51.100.2"])))
        for _ in steps:
            made.take([Applied(it) for it in itertools.islice(others, 20)])
        assert next(others, None) is None
        assert {plan.key.name for plan in planned(made)} == {"other"}
        assert len(planned(made)) == 0


class TestBackends:
    def test_nodes_times_virtual_servers_are_bounded_and_said(self) -> None:
        plan = only(planned(catalog(LARGE, *nodes(100))))
        assert size(plan) == 50_000
        assert [it.reason for it in plan.problems] == ["TooManyBackends"]
        assert plan.problems[0].subject.startswith("50000 ")
        assert "--max-backends" in plan.problems[0].message

    def test_the_first_ports_are_served_and_a_vip_of_which_no_port_is_is_not_bound(self) -> None:
        item = service("web", external_ips=[VIP, "198.51.100.2"], ports=numbered(3))
        plan = only(planned(catalog(item, *nodes(10), max_backends=25)))
        assert [str(it.key) for it in plan.virtual_servers] == [f"TCP {VIP}:{number}" for number in (1, 2)]
        assert [it.address for it in plan.vips] == [VIP]
        assert plan.problems[0].subject.startswith("40 ")

    def test_endpoints_are_not_counted_as_real_servers(self) -> None:
        addresses = [f"10.244.1.{number}" for number in range(1, 100)]
        item = service("web", external_ips=[VIP])
        plan = only(planned(catalog(item, endpoint_slice("web-1", *addresses), *nodes(10), max_backends=10)))
        assert (size(plan), plan.problems) == (10, ())

    @pytest.mark.parametrize("annotations", [{"kroute.io/local": "true"}, {"kroute.io/director-weight": "endpoints"}])
    def test_endpoints_that_are_looked_at_are_bounded(self, annotations: dict[str, str]) -> None:
        addresses = [f"10.244.1.{number}" for number in range(1, 100)]
        item = service("web", external_ips=[VIP], annotations=annotations)
        plan = only(planned(catalog(item, endpoint_slice("web-1", *addresses), *nodes(10), max_backends=20)))
        assert plan.problems[0].subject.startswith("79 ")


class TestChecks:
    def test_without_node_ports_one_of_a_node_is_enough(self) -> None:
        made = catalog(LARGE, *nodes(40))
        planned(made)
        assert {(it.kind, it.port) for it in made.probes} == {(ProbeKind.REACH, 1)}
        assert len(made.probes) == 40
        made.set_failing({Probe(ProbeKind.REACH, "192.168.0.1", 1)})
        plan = only(planned(made))
        assert all(
            {it.address for it in each.real_servers if not it.weight} == {"192.168.0.1"}
            for each in plan.virtual_servers
        )

    @pytest.mark.parametrize(("ports", "count", "checks"), [(3, 10, 30), (1000, 10, MOST_CHECKS), (2, 1500, 1500)])
    def test_of_one_service_are_so_many_and_one_of_each_node_at_least(
        self, ports: int, count: int, checks: int
    ) -> None:
        made = catalog(with_node_ports(ports), *nodes(count))
        planned(made)
        assert len(made.probes) == checks

    def test_a_port_without_a_check_fails_on_a_node_that_fails_all_of_the_services_checks(self) -> None:
        made = catalog(with_node_ports(600), *nodes(2))
        planned(made)
        of_first = {it for it in made.probes if it.address == "192.168.0.1"}
        assert len(of_first) == 500

        def drained() -> set[int]:
            [plan] = [it for it in made.plans.values() if it.key.name == "web"]
            return {each.key.port for each in plan.virtual_servers if not each.real_servers[0].weight}

        made.set_failing(of_first - {Probe(ProbeKind.CONNECT, "192.168.0.1", 30007)})
        planned(made)
        assert drained() == {*range(80, 580)} - {87}
        made.set_failing(of_first)
        planned(made)
        assert drained() == {*range(80, 680)}

    def test_udp_ports_have_none(self) -> None:
        item = service("web", external_ips=[VIP], ports=[port(53, protocol="UDP"), port(54, "b")])
        made = catalog(item, *nodes(1))
        planned(made)
        made.set_failing(set(made.probes))
        plan = only(planned(made))
        assert {it.key.protocol: it.real_servers[0].weight for it in plan.virtual_servers} == {
            Protocol.TCP: 0,
            Protocol.UDP: 1,
        }

    def test_those_that_services_share_are_made_once_and_for_as_long_as_one_asks(self) -> None:
        one, two = (
            service(name, external_ips=[f"198.51.100.{last}"], namespace=name) for last, name in enumerate("ab", 1)
        )
        made = catalog(one, two, *nodes(3))
        planned(made)
        assert set(made.take_asked().values()) == {frozenset({"a", "b"})}
        made.take([Applied(service("a", external_ips=[], namespace="a"))])
        planned(made)
        assert set(made.take_asked().values()) == {frozenset({"b"})}
        made.take([Applied(service("b", external_ips=[], namespace="b"))])
        planned(made)
        assert made.take_asked() == dict.fromkeys(
            [Probe(ProbeKind.REACH, f"192.168.0.{last}", 80) for last in (1, 2, 3)], frozenset()
        )
        assert (made.take_asked(), len(made.probes)) == ({}, 0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Probe]]:
    """Return the checks that have been made, and when. All pass, 0.1 s later."""
    found: list[tuple[float, Probe]] = []

    async def look(probe: Probe, _timeout: float) -> str | None:
        found.append((asyncio.get_running_loop().time(), probe))
        await asyncio.sleep(0.1)
        return None

    monkeypatch.setattr("kroute.http.probes.check", look)
    return found


def checks(count: int, port_number: int, namespace: str) -> dict[Probe, frozenset[str]]:
    return {
        Probe(ProbeKind.CONNECT, f"10.{number >> 8}.{number & 255}.1", port_number): frozenset({namespace})
        for number in range(count)
    }


class TestShares:
    @virtual(settles_within=0)
    async def test_a_namespace_with_very_many_checks_delays_its_own_alone(
        self, made: list[tuple[float, Probe]]
    ) -> None:
        probes = NodeProbes(ProbeSettings(interval=2.0), lambda: None)
        victims = checks(10, 80, "victim")
        async with running(probes.run()):
            probes.want(checks(20_000, 1, "greedy"))
            await asyncio.sleep(1.0)
            probes.want(victims)
            await asyncio.sleep(9.0)
        times = [at for at, probe in made if probe in victims]
        assert len(times) >= 4 * len(victims)
        assert max(times[: len(victims)]) < 1.2
        assert len(made) <= 10 * MOST_A_SECOND + MOST_A_SECOND // 10

    @virtual(settles_within=0)
    async def test_a_check_for_which_several_ask_is_made_once_in_a_turn_of_any_of_them(
        self, made: list[tuple[float, Probe]]
    ) -> None:
        probes = NodeProbes(ProbeSettings(interval=2.0), lambda: None)
        shared = next(iter(checks(1, 80, "victim")))
        async with running(probes.run()):
            probes.want(checks(5000, 1, "greedy") | {shared: frozenset({"greedy"})})
            await asyncio.sleep(0.5)
            probes.want({shared: frozenset({"greedy", "victim"})})
            await asyncio.sleep(1.5)
            assert [probe for _, probe in made].count(shared) == 1
            probes.want({shared: frozenset()})
            await asyncio.sleep(5.0)
        assert [probe for _, probe in made].count(shared) == 1

    @virtual(settles_within=0)
    async def test_a_start_does_not_wait_for_all_first_results_of_a_namespace_with_very_many(
        self, made: list[tuple[float, Probe]]
    ) -> None:
        told: list[float] = []
        probes = NodeProbes(ProbeSettings(), lambda: told.append(asyncio.get_running_loop().time()))
        async with running(probes.run()):
            probes.want(checks(50_000, 1, "greedy") | checks(50, 80, "victim"))
            await asyncio.sleep(FIRST_RESULTS_WITHIN - 1)
            assert not probes.settled
            told.clear()
            await asyncio.sleep(2)
            assert probes.settled
            assert told
        assert len({probe for _, probe in made if probe.port == 80}) == 50

    @virtual(settles_within=0)
    async def test_verdicts_that_change_all_the_time_write_few_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        results = itertools.cycle(("no", None))

        async def look(_probe: Probe, _timeout: float) -> str | None:
            return next(results)

        monkeypatch.setattr("kroute.http.probes.check", look)
        probes = NodeProbes(ProbeSettings(interval=0.1, failures=1, successes=1), lambda: None)
        with capture_logs() as logs:
            async with running(probes.run()):
                probes.want(checks(99, 1, "greedy"))
                await asyncio.sleep(5)
                said = len(logs)
                probes.want(checks(1, 80, "victim"))
                await asyncio.sleep(5)
        assert said <= BURST + 1
        assert "kroute status" in logs[said - 1]["more"]
        assert [line for line in logs if line["port"] == 80]


@virtual(settles_within=0)
async def test_verdicts_that_change_all_the_time_are_planned_in_a_fifth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[float] = []

    async def plan_slowly(steps: Steps[list[ServicePlan]]) -> list[ServicePlan]:
        plans = finish(steps)
        if plans:
            planned.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.1)
        return plans

    monkeypatch.setattr(director_module, "in_turns", plan_slowly)
    async with open_fake_kernel(new_kernel()) as kernel:
        director = Director(
            DirectorSettings(SETTINGS, "eth0"),
            Api(Credentials("http://127.0.0.1:1")),  # nothing is followed, asked or written: only plans are made
            identity=DirectorIdentity.open("d", tmp_path),
            interfaces=NodeInterfaces(frozenset(), ()),
            ledger=Ledger.open(tmp_path),
            kernel=kernel,
        )
        director._take([*map(Applied, (service("web", external_ips=[VIP]), *nodes(2)))])
        director._take([*map(Listed, (Service, EndpointSlice, Node))])
        probe = Probe(ProbeKind.REACH, "192.168.0.1", 80)
        director._probes._is_late = True
        async with running(director._plan()):
            await asyncio.sleep(5)
            planned.clear()
            for _ in range(200):
                director._probes._failing ^= {probe}
                director._probes._notify()
                await asyncio.sleep(0.05)
            assert len(planned) <= 10 / 0.5 + 1
            await asyncio.sleep(1)
            [plan] = director._catalog.plans.values()
            assert [it.weight for it in plan.virtual_servers[0].real_servers] == [1, 1], "and the last one is planned"
