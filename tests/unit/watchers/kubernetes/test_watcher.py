"""The cluster is followed by one reflector for each resource."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from kroute.model.kinds import WATCHED
from kroute.model.objects import Change, EndpointSlice, Node, Service
from kroute.settings import Settings
from kroute.watchers import BATCH
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.watcher import KEPT, FollowedCluster, KubernetesWatcher, followed
from tests.apiserver import ApiServer
from tests.unit.watching import (
    Follower,
    Pauses,
    endpoint_slice,
    eventually,
    key,
    labelled,
    node,
    quick,
    running,
    service,
)


async def test_services_slices_and_nodes_are_followed(tmp_path: Path, follower: Follower) -> None:
    async with ApiServer(token="secret") as server:
        for item in (service("web"), endpoint_slice("web-1"), node("node1"), node("node2")):
            server.apply(item)
        server.apply(endpoint_slice("headless-1", **{"service.kubernetes.io/headless": ""}))
        server.apply(labelled(service("labelled"), **{"service.kubernetes.io/headless": ""}))
        server.apply(service("none", clusterIP="None"))
        settings = Settings(node_name="node1", kubeconfig=server.kubeconfig(tmp_path / "config"))
        async with await Api.open(settings) as api:
            watcher = KubernetesWatcher(api, follower, quick(Pauses()))
            async with running(watcher.run()):
                await follower.until(lambda: len(follower.listed) == 3)
                assert follower.items.keys() == {
                    (Service, key("web")),
                    (Service, key("labelled")),
                    (EndpointSlice, key("web-1")),
                    (Node, key("node1", "")),
                    (Node, key("node2", "")),
                }
                server.apply(node("node1", zone="z2"))
                server.delete("EndpointSlice", "web-1", "default")
                await follower.until(lambda: len(follower.items) == 4 and "z2" in str(follower.items))
                assert {kind: it.statistics.objects for kind, it in watcher.reflectors.items()} == {
                    "Service": 2,
                    "EndpointSlice": 0,
                    "Node": 2,
                }


async def test_trouble_with_one_resource_does_not_stop_the_others(tmp_path: Path, follower: Follower) -> None:
    async with ApiServer() as server:
        server.faults.add("answer", status=403, resource="nodes", times=1000)
        settings = Settings(node_name="node1", kubeconfig=server.kubeconfig(tmp_path / "config"))
        async with await Api.open(settings) as api:
            watcher = KubernetesWatcher(api, follower, quick(Pauses()))
            async with running(watcher.run()):
                await follower.until(lambda: set(follower.listed) == {Service, EndpointSlice})
                server.apply(service("web"))
                await follower.until(lambda: bool(follower.items))
                server.faults.clear()
                await follower.until(lambda: Node in follower.listed)


class TestFollowedCluster:
    """A cluster is followed before anybody takes what comes."""

    async def test_what_has_come_already_is_passed_on_first_and_then_what_comes(self, follower: Follower) -> None:
        async with ApiServer() as server, await Api.open(Settings(node_name="node1", master=(server.url,))) as api:
            server.apply(service("early"))
            async with followed(api, WATCHED) as cluster:
                reflectors = cluster.watcher.reflectors
                await eventually(lambda: all(it.statistics.resource_version for it in reflectors.values()))
                assert follower.items == {}
                async with running(cluster.pass_on(follower)):
                    await follower.until(lambda: set(follower.listed) == {Service, EndpointSlice, Node})
                    assert follower.items.keys() == {(Service, key("early"))}
                    server.apply(service("late"))
                    await follower.until(lambda: (Service, key("late")) in follower.items)
                server.delete("Service", "early", "default")
                await eventually(lambda: reflectors["Service"].statistics.objects == 1)
                assert (Service, key("early")) in follower.items  # nobody takes it any more

    async def test_of_long_lists_little_is_kept_until_somebody_takes_it(self, follower: Follower) -> None:
        async with ApiServer() as server, await Api.open(Settings(node_name="node1", master=(server.url,))) as api:
            for number in range(500):
                server.apply(service(f"web-{number}"))
                server.apply(endpoint_slice(f"web-{number}-x"))
            async with followed(api, WATCHED) as cluster:
                await eventually(lambda: sum(map(len, cluster._kept)) >= KEPT)
                for _ in range(200):
                    await asyncio.sleep(0.001)
                assert sum(map(len, cluster._kept)) <= KEPT + len(WATCHED) * BATCH
                async with running(cluster.pass_on(follower)):
                    await follower.until(lambda: set(follower.listed) == {Service, EndpointSlice, Node})
                assert len(follower.items) == 1000

    async def test_of_changes_that_come_one_by_one_little_is_kept_either(self, follower: Follower) -> None:
        """An agent whose machine has run out of something may wait for hours before it takes any."""
        most = KEPT + len(WATCHED) * BATCH
        async with (
            ApiServer() as server,
            await Api.open(Settings(node_name="node1", master=(server.url,))) as api,
            followed(api, WATCHED) as cluster,
        ):
            reflectors = cluster.watcher.reflectors
            await eventually(lambda: all(it.statistics.resource_version for it in reflectors.values()))
            for number in range(most + 100):
                server.apply(service(f"web-{number}"))
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.1)
            assert sum(map(len, cluster._kept)) <= most
            async with running(cluster.pass_on(follower)):
                await follower.until(lambda: len(follower.items) == most + 100)

    async def test_what_comes_while_the_first_is_passed_on_waits_its_turn(self) -> None:
        async with ApiServer() as server, await Api.open(Settings(node_name="node1", master=(server.url,))) as api:
            cluster, taken = FollowedCluster(api, WATCHED), list[Sequence[Change]]()
            batches: list[list[Change]] = [[] for _ in range(4)]
            cluster._take(batches[0])
            cluster._take(batches[1])

            def take(changes: Sequence[Change]) -> None:
                taken.append(changes)
                if changes is batches[0]:
                    cluster._take(batches[2])

            async with running(cluster.pass_on(take)):
                await eventually(lambda: len(taken) == 3)
                cluster._take(batches[3])
                await eventually(lambda: len(taken) == 4)
            assert [*map(id, taken)] == [*map(id, batches)]
