"""C13, C14 and C18: endpoints in several EndpointSlices, and many Services at once."""

from tests.conformance.conftest import AddPod
from tests.conformance.expect import answers_with, served_by
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.deployment import Deployment, eventually
from tests.lab.objects import endpoint_slices, port, service
from tests.lab.world import World

SERVICES = 100
ENDPOINTS_WITHIN = 20.0
"""Seconds, before the lab's slowness counts: the median that the end-to-end test allows for 100 Services' endpoints."""


@row("C13")
async def test_c13_multiple_ports_specified_in_multiple_endpointslices(
    world: World, kroute: Deployment, free: Allocator, add_pod: AddPod
) -> None:
    ips = free.cluster_ips()
    pod = await add_pod("node2", "two-ports", http=8090)
    await pod.serve(http=8091)
    kroute.apply(
        service("sliced", *ips, ports=[port("one", 80), port("two", 81)]),
        *endpoint_slices("sliced", [pod], [port("one", 8090)], name="first"),
        *endpoint_slices("sliced", [pod], [port("two", 8091)], name="second"),
    )
    for number, target in ((80, 8090), (81, 8091)):
        await served_by(world.visitor, ips, number, {"two-ports"})
        assert {answer.port for answer in await answers_with(world.visitor, ips, number)} == {target}


@row("C14")
async def test_c14_multiple_endpoint_ips_specified_in_multiple_endpointslices(
    world: World, kroute: Deployment, free: Allocator, add_pod: AddPod
) -> None:
    ips = free.cluster_ips()
    pod = await add_pod("node2", "elsewhere", http=8090)
    kroute.apply(
        service("sliced", *ips, ports=[port("one", 80), port("two", 81)]),
        *endpoint_slices("sliced", world.web[:1], [port("one", 8080)], name="first"),
        *endpoint_slices("sliced", [pod], [port("two", 8090)], name="second"),
    )
    await served_by(world.visitor, ips, 80, {"web-1"})
    await served_by(world.visitor, ips, 81, {"elsewhere"})


@row("C18")
async def test_c18_service_endpoints_latency_should_not_be_very_high(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    vips = [free.cluster_ips() for _ in range(SERVICES)]
    for number, ips in enumerate(vips):
        name = f"latency-{number}"
        kroute.apply(service(name, *ips), *endpoint_slices(name, [world.web[number % 3]]))

    async def all_serve() -> None:
        for number, ips in enumerate(vips):
            for address in ips:
                assert (await world.visitor.http(address, 8080)).host == f"web-{number % 3 + 1}"

    await eventually(all_serve, ENDPOINTS_WITHIN)
