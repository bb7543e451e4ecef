"""The agents' pods are found by the DaemonSet's labels, and asked in the way that their configuration leaves open."""

import asyncio
import json
from pathlib import Path

import pytest

from kroute.cli.fleet.agents import LABELS, find, run
from kroute.cli.fleet.kubectl import Kubectl, KubectlError, Output
from tests.lab.manifests import KUSTOMIZE, render, the
from tests.unit.watching import PATIENCE


class Answers(Kubectl):
    """Answers with these documents by the end of the path; what is missing is refused."""

    def __init__(self, pods: list[dict[str, object]], **config: str) -> None:
        super().__init__((), at_once=1, seconds=1)
        self.documents: dict[str, object] = {"pods": {"items": pods}, "kroute": {"data": config}}

    async def get(self, path: str) -> bytes:
        name = path.partition("?")[0].rpartition("/")[2]
        if name not in self.documents:
            raise KubectlError("forbidden")
        return json.dumps(self.documents[name]).encode()


def pod(*, phase: str = "Running", deleted: bool = False, **container: object) -> dict[str, object]:
    made = {"name": "kroute", "command": ["kroute", "run"], "envFrom": [{"configMapRef": {"name": "kroute"}}]}
    metadata = {"name": "kroute-x", "namespace": "kube-system"} | ({"deletionTimestamp": "now"} if deleted else {})
    return {
        "metadata": metadata,
        "spec": {"nodeName": "node1", "containers": [made | container]},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("container", "config", "port"),
    [
        ({}, {}, None),
        ({}, {"KROUTE_METRICS_BIND_ADDRESS": "0.0.0.0:10249"}, 10249),
        ({}, {"KROUTE_METRICS_BIND_ADDRESS": "[::]:10249"}, 10249),
        ({}, {"KROUTE_METRICS_BIND_ADDRESS": ":10249"}, 10249),
        ({}, {"KROUTE_METRICS_BIND_ADDRESS": "off"}, None),
        ({}, {"KROUTE_METRICS_BIND_ADDRESS": "[::1]:10249"}, None),
        ({"env": [{"name": "KROUTE_METRICS_BIND_ADDRESS", "value": "10.0.0.1:1"}]}, {}, 1),
        ({"args": ["--metrics-bind-address=0.0.0.0:2"]}, {"KROUTE_METRICS_BIND_ADDRESS": "127.0.0.1:1"}, 2),
        ({"args": ["--metrics-bind-address", "127.0.0.1:2"]}, {"KROUTE_METRICS_BIND_ADDRESS": "0.0.0.0:1"}, None),
    ],
)
async def test_the_pod_proxy_is_used_where_the_port_is_bound_to_the_node(
    container: dict[str, object], config: dict[str, str], port: int | None
) -> None:
    [found] = await find(Answers([pod(**container)], **config), "kube-system")
    assert found.port == port


async def test_a_config_map_that_may_not_be_read_leaves_exec() -> None:
    answers = Answers([pod()], KROUTE_METRICS_BIND_ADDRESS="0.0.0.0:1")
    del answers.documents["kroute"]
    [found] = await find(answers, "kube-system")
    assert (found.node, found.name, found.container, found.port) == ("node1", "kroute-x", "kroute", None)


async def test_pods_that_run_something_else_are_none_and_those_that_do_not_run_say_so() -> None:
    pods = [pod(command=["kroute", "cleanup"]), pod(phase="Pending"), pod(deleted=True)]
    found = await find(Answers(pods), "kube-system")
    assert sorted(it.trouble for it in found) == ["its pod kroute-x is Pending", "its pod kroute-x is being deleted"]


async def test_an_answer_that_is_no_list_of_pods_is_refused() -> None:
    answers = Answers([])
    answers.documents["pods"] = {"items": [{"metadata": {}}]}
    with pytest.raises(KubectlError, match="list of pods"):
        await find(answers, "kube-system")


class Here(Kubectl):
    """Runs here what is to be run in a pod, for as long as it takes."""

    async def call(self, *arguments: str) -> Output:
        words = arguments[arguments.index("--") + 1 :]
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        return Output(process.returncode or 0, said, "")


async def test_a_command_that_takes_longer_than_kubectl_is_ended_in_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = tmp_path / "kroute"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    [agent] = await find(Answers([pod()]), "kube-system")
    with pytest.raises(KubectlError, match="ended with 124"):
        async with asyncio.timeout(PATIENCE):
            await run(Here((), at_once=1, seconds=0.1), agent, ["status"])


def test_the_labels_are_those_of_the_daemon_set() -> None:
    labels = the("DaemonSet", render(KUSTOMIZE / "base"))["spec"]["template"]["metadata"]["labels"]
    name, _, value = LABELS.partition("=")
    assert labels[name] == value
