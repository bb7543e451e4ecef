"""Pods are read as metadata alone, and only those with the label."""

import asyncio
from pathlib import Path

import pytest

from kroute.model.kinds import PODS
from kroute.model.objects import WEIGHT, Pod
from kroute.settings import Settings
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.errors import ApiError
from kroute.watchers.kubernetes.timing import Timing
from kroute.watchers.kubernetes.watcher import KubernetesWatcher
from tests.apiserver import ApiServer, Features
from tests.unit.watching import Follower, key, labelled, running


def pod(name: str, weight: str | None, phase: str = "Running") -> dict[str, object]:
    item = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "web"}]},
        "status": {"phase": phase},
    }
    return labelled(item, **({WEIGHT: weight} if weight is not None else {}))


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming lists", "paged lists"])
async def test_pods_are_followed_by_their_label_without_anything_but_metadata(tmp_path: Path, streaming: bool) -> None:
    follower = Follower()
    async with ApiServer(features=Features(streaming_lists=streaming)) as server:
        for item in (pod("heavy", "9"), pod("plain", None), pod("done", "5", phase="Succeeded")):
            server.apply(item)
        settings = Settings(node_name="node1", kubeconfig=server.kubeconfig(tmp_path / "config"))
        async with await Api.open(settings) as api:
            watcher = KubernetesWatcher(api, follower, Timing(clock=asyncio.get_running_loop().time), kinds=[PODS])
            async with running(watcher.run()):
                await follower.until(lambda: follower.listed == [Pod])
                assert set(follower.items) == {(Pod, key("heavy"))}
                server.apply(pod("plain", "2"))
                await follower.until(lambda: (Pod, key("plain")) in follower.items)
                server.apply(pod("plain", "2", phase="Failed"))
                server.apply(pod("heavy", None))
                await follower.until(lambda: not follower.items)
        assert all(it.headers["Accept"].startswith("application/json;as=Partial") for it in server.requests)
        assert {it.query["labelSelector"] for it in server.requests} == {WEIGHT}


async def test_the_stand_in_refuses_one_object_for_a_list(tmp_path: Path) -> None:
    async with ApiServer() as server:
        settings = Settings(node_name="node1", kubeconfig=server.kubeconfig(tmp_path / "config"))
        async with await Api.open(settings) as api:
            accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
            with pytest.raises(ApiError, match="the requested object is a list"):
                await api._exchange("GET", PODS.path, {}, accept=accept)
            assert b"PartialObjectMetadataList" in await api.get(PODS.path, only_metadata=True)
