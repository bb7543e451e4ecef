"""The kernel's counters are summed, listed for a limited number of Services, and read no more often than they cost."""

import asyncio
from collections.abc import Mapping

import pytest

from kroute.base.histogram import Histogram
from kroute.inspect.figures import Figures, read_figures
from kroute.inspect.policies import Enforced
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.objects import RealServerState, Traffic, VirtualServerOptions, VirtualServerState
from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol, RealServer, ServicePlan, VirtualServer, VirtualServerKey
from kroute.model.policy_plan import GroupKey
from kroute.telemetry.kernel_reader import COST_SHARE, SHORTEST, KernelReader, KernelSummary, PolicyReader, summarized
from tests.unit.fake_node import Clock
from tests.unit.observed import Kernel
from tests.unit.planning.policies.cluster import Cluster, ingress, pod


def key(name: str, address: str = "10.96.0.1") -> VirtualServerKey:
    return VirtualServerKey(Protocol.TCP, address, int(name))


def plan(name: str, *ports: str, real_servers: int = 2) -> ServicePlan:
    reals = tuple(RealServer(f"10.1.0.{number}", 8080) for number in range(real_servers))
    servers = tuple(VirtualServer(key(port), "rr", 0, None, reals) for port in ports)
    return ServicePlan(ObjectKey("default", name), virtual_servers=servers)


def state(*weights: int, active: int = 0, inactive: int = 0) -> VirtualServerState:
    reals = {
        (f"10.1.0.{number}", 8080): RealServerState(weight, active, inactive) for number, weight in enumerate(weights)
    }
    return VirtualServerState(VirtualServerOptions(), reals)


async def summarize(
    plans: list[ServicePlan],
    table: dict[VirtualServerKey, VirtualServerState],
    passed: dict[VirtualServerKey, Traffic],
    limit: int,
) -> KernelSummary:
    kernel = Kernel()
    kernel.table, kernel.passed = table, passed
    return summarized(await read_figures(plans, kernel), limit)


async def test_servers_are_counted_by_state_and_connections_added_up() -> None:
    plans = [plan("web", "80", "443"), plan("idle", "81", real_servers=0), plan("lost", "82")]
    table = {key("80"): state(1, 1, 0, active=2, inactive=1), key("443"): state(1, active=5), key("99"): state(1, 1)}
    passed = {key("80"): Traffic(1, 2, 3, 4, 5), key("443"): Traffic(10, 20, 30, 40, 50), key("99"): Traffic(7, 7)}
    summary = await summarize(plans, table, passed, 10)
    total, web = summary.total, dict(summary.services)[ObjectKey("default", "web")]
    assert (total.virtual_servers, total.refusing, total.missing) == (4, 1, 1)
    assert (total.serving, total.ejected, total.draining, total.missing_real_servers) == (3, 0, 1, 3)
    assert (total.active, total.inactive) == (11, 3)
    assert (web.active, web.inactive, web.traffic) == (11, 3, Traffic(11, 22, 33, 44, 55))
    assert summary.omitted == 0


async def test_those_with_most_connections_are_reported_in_the_order_of_their_names() -> None:
    plans = [plan("a", "1"), plan("b", "2"), plan("c", "3")]
    passed = {key("1"): Traffic(5), key("2"): Traffic(1), key("3"): Traffic(9)}
    summary = await summarize(plans, {}, passed, 2)
    assert [key.name for key, _ in summary.services] == ["a", "c"]
    assert summary.omitted == 1


async def test_a_reading_is_kept_for_a_time_in_proportion_to_what_it_took() -> None:
    kernel, now = Kernel(), 100.0
    readings = KernelReader(lambda: [plan("web", "80")], 10, lambda: kernel, clock=lambda: now)

    async def read_slowly() -> dict[tuple[int, str, int], Traffic]:
        nonlocal now
        now += 0.5
        return {}

    kernel.traffic = read_slowly
    first = await readings.summary()
    assert readings.worth == 0.5 * COST_SHARE
    now += 0.5 * COST_SHARE - 0.1
    assert await readings.summary() is first
    assert kernel.readings == 1
    now += 0.2
    await readings.summary()
    assert kernel.readings == 2


async def test_those_who_ask_at_once_share_one_reading() -> None:
    kernel = Kernel()
    readings = KernelReader(list, 10, lambda: kernel)
    summaries = await asyncio.gather(*(readings.summary() for _ in range(5)))
    assert all(it is summaries[0] for it in summaries)
    assert kernel.readings == 1
    assert readings.worth == SHORTEST


async def test_without_series_for_services_no_traffic_is_read() -> None:
    kernel = Kernel()

    async def unwanted() -> dict[tuple[int, str, int], Traffic]:
        raise AssertionError("nobody asked for traffic")

    kernel.traffic = unwanted
    summary = await KernelReader(lambda: [plan("web", "80")], 0, lambda: kernel).summary()
    assert (list(summary.services), summary.omitted) == ([], 1)


async def test_a_kernel_that_cannot_be_read_is_an_error_each_time() -> None:
    kernel = Kernel()
    kernel.refuses = True
    readings = KernelReader(list, 10, lambda: kernel)
    for _ in range(2):
        with pytest.raises(KernelError, match="load ip_vs"):
            await readings.summary()
    kernel.refuses = False
    assert (await readings.summary()).total == Figures()


async def test_the_figures_of_every_service_and_a_summary_are_of_one_scan() -> None:
    kernel = Kernel()
    reader = KernelReader(lambda: [plan("web", "80")], 10, lambda: kernel)
    reading = await reader.figures()
    assert (await reader.summary()).total is reading.total
    assert kernel.readings == 1


class SlowRefusals:
    """Stands in for PolicyTables: what was refused grows, and to read it takes 0.1 s."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.packets = 0

    def group_name(self, _key: GroupKey) -> str:
        return "ingress-1"

    async def refused(self) -> Mapping[str, int]:
        self.clock.now += 0.1
        self.packets += 1
        return {"ingress-1": self.packets}


async def test_what_policies_refused_is_read_no_more_often_than_it_costs() -> None:
    clock = Clock()
    catalog = Cluster(pod("web", "10.0.0.1"), ingress(name="clients")).catalog
    reader = PolicyReader(Enforced(catalog, SlowRefusals(clock), Histogram((1.0,))), 10, clock)
    for pause, packets in ((0.0, 1), (COST_SHARE * 0.1 - 0.01, 1), (0.02, 2)):
        clock.now += pause
        assert (await reader.figures()).refused == [(("Ingress", "shop", "clients"), packets)]
