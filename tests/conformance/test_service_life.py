"""Services in service.go that are created, deleted, created again or left to another proxy; and restarts."""

from pathlib import Path

from tests.conformance.conftest import FLAGS
from tests.conformance.expect import answers_with, each_of, refused, served_by, unrouted
from tests.conformance.table import row
from tests.lab import objects
from tests.lab.allocation import Allocator
from tests.lab.api_server import ApiServer
from tests.lab.cluster import Cluster
from tests.lab.deployment import Deployment
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import World

WEB = {"web-1", "web-2", "web-3"}
PROXY_NAME = "service.kubernetes.io/service-proxy-name"
HEADLESS = "service.kubernetes.io/headless"


@row("service 1020")
async def test_service_1020_preserve_source_pod_ip_for_traffic_thru_service_cluster_ip(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips = free.cluster_ips()
    kroute.apply(service("source", *ips), *endpoint_slices("source", world.web[1:2]))
    for client in (world.visitor, world.web[2]):
        await served_by(client, ips, 8080, {"web-2"})
        assert [answer.peer for answer in await answers_with(client, ips, 8080)] == [*each_of(client)]


@row("service 1095")
async def test_service_1095_allow_pods_to_hairpin_back_to_themselves_through_services(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips = free.cluster_ips()
    kroute.apply(service("hairpin", *ips), *endpoint_slices("hairpin", world.web[:1]))
    await served_by(world.web[0], ips, 8080, {"web-1"})


@row("service 1125")
async def test_service_1125_up_and_down_services(world: World, kroute: Deployment, free: Allocator) -> None:
    first, second, third = (free.cluster_ips() for _ in range(3))
    one, two, three = (service(f"up-{n}", *ips) for n, ips in enumerate((first, second, third)))
    kroute.apply(one, two, *endpoint_slices("up-0", world.web), *endpoint_slices("up-1", world.web))
    for ips in (first, second):
        await served_by(world.visitor, ips, 8080, WEB)
    kroute.delete(one, *endpoint_slices("up-0", world.web))
    await unrouted(world.visitor, first, 8080)
    kroute.apply(three, *endpoint_slices("up-2", world.web))
    for ips in (second, third):
        await served_by(world.visitor, ips, 8080, WEB)


@row("service 1171")
async def test_service_1171_work_after_the_service_has_been_recreated(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips = free.cluster_ips()
    web = service("again", *ips)
    kroute.apply(web, *endpoint_slices("again", world.web))
    await served_by(world.visitor, ips, 8080, WEB)
    kroute.delete(web)
    await unrouted(world.visitor, ips, 8080)
    kroute.apply(web)
    await served_by(world.visitor, ips, 8080, WEB)


@row("service 1207")
async def test_service_1207_work_after_restarting_kube_proxy(world: World, kroute: Deployment, free: Allocator) -> None:
    first, second = free.cluster_ips(), free.cluster_ips()
    kroute.apply(service("before", *first), *endpoint_slices("before", world.web))
    await served_by(world.visitor, first, 8080, WEB)
    await kroute.stop()
    await served_by(world.visitor, first, 8080, WEB)
    await kroute.start(*FLAGS)
    kroute.apply(service("after", *second), *endpoint_slices("after", world.web))
    for ips in (first, second):
        await served_by(world.visitor, ips, 8080, WEB)


@row("service 1240")
async def test_service_1240_work_after_restarting_apiserver(tmp_path: Path, cluster: Cluster, free: Allocator) -> None:
    master, worker = cluster.node("node1"), cluster.node("node2")
    pod, client = await master.pod("web", http=8080), await worker.pod("caller")
    first, second = free.cluster_ips(), free.cluster_ips()
    before = [service("before", *first), *endpoint_slices("before", [pod])]
    api = ApiServer(master, tmp_path, [objects.node(worker), *before])
    api.start()
    try:
        agent = await worker.kroute("run", "--kubeconfig", str(api.kubeconfig), "--node-name", "node2", *FLAGS)
        await agent.ready()
        await served_by(client, first, 8080, {"web"})
        api.stop()
        await served_by(client, first, 8080, {"web"})
        api.start()
        for item in (*endpoint_slices("after", [pod]), service("after", *second)):
            api.create(item)
        for ips in (first, second):
            await served_by(client, ips, 8080, {"web"})
    finally:
        api.stop()


@row("service 2294")
async def test_service_2294_implement_service_proxy_name(world: World, kroute: Deployment, free: Allocator) -> None:
    await toggled(world, kroute, free, {PROXY_NAME: "foo-bar"})


@row("service 2345")
async def test_service_2345_implement_headless(world: World, kroute: Deployment, free: Allocator) -> None:
    """Since 1.36 the label counts on the EndpointSlices; on a Service with a ClusterIP it means nothing."""
    ips = free.cluster_ips()
    plain = endpoint_slices("toggle", world.web)
    labelled = [
        {**it, "metadata": it["metadata"] | {"labels": it["metadata"]["labels"] | {HEADLESS: ""}}} for it in plain
    ]
    kroute.apply(service("toggle", *ips, labels={HEADLESS: ""}), *labelled)
    await refused(world.visitor, ips, 8080)
    kroute.apply(*plain)
    await served_by(world.visitor, ips, 8080, WEB)
    kroute.apply(*labelled)
    await refused(world.visitor, ips, 8080)


async def toggled(world: World, kroute: Deployment, free: Allocator, labels: dict[str, str]) -> None:
    """Expect that a Service is served only without the labels, and that another Service is served throughout."""
    beside, toggle = free.cluster_ips(), free.cluster_ips()
    kroute.apply(
        service("toggle", *toggle, labels=labels),
        service("beside", *beside),
        *endpoint_slices("toggle", world.web),
        *endpoint_slices("beside", world.web),
    )
    await served_by(world.visitor, beside, 8080, WEB)
    await unrouted(world.visitor, toggle, 8080)
    kroute.apply(service("toggle", *toggle))
    await served_by(world.visitor, toggle, 8080, WEB)
    kroute.apply(service("toggle", *toggle, labels=labels))
    await unrouted(world.visitor, toggle, 8080)
    await served_by(world.visitor, beside, 8080, WEB)
