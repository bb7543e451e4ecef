"""`kubectl kroute` on three nodes, one of which has missed a change; `kroute status` and `kroute bundle` on a node."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.apiserver.pods import EXEC
from tests.lab import objects
from tests.lab.answers import ask_json
from tests.lab.api_server import ApiServer
from tests.lab.cluster import Node
from tests.lab.deployment import eventually
from tests.lab.objects import Object
from tests.scenarios.conftest import FAMILIES, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
PORT = 10249
ROOT = Path(__file__).parents[2]
NOT_IN_THE_LAB = {"journal.txt", "kernel/modules.txt"}
"""Parts of a bundle that a machine of the lab may not have: there is no journal, and its modules may be built in."""


def manifests(directory: Path, items: list[Object]) -> Path:
    directory.mkdir()
    (directory / "objects.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return directory


def pod(node: Node, programs: Path, bound: str) -> Object:
    """The pod of a node's agent, as the DaemonSet makes it; `programs` has the command of its container."""
    programs.mkdir()
    command = f"ip netns exec {node.namespace.name} {sys.executable} -m kroute"
    (programs / "kroute").write_text(f'#!/bin/sh\ncd {ROOT}; exec {command} "$@" --state-dir {node.state_dir}\n')
    (programs / "kroute").chmod(0o755)
    variable = {"name": "KROUTE_METRICS_BIND_ADDRESS", "value": bound}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"kroute-{node.name}",
            "namespace": "kube-system",
            "labels": {"app.kubernetes.io/name": "kroute"},
            "annotations": {EXEC: str(programs)},
        },
        "spec": {
            "nodeName": node.name,
            "containers": [{"name": "kroute", "image": "kroute", "command": ["kroute", "run"], "env": [variable]}],
        },
        "status": {"phase": "Running", "podIP": node.ip},
    }


@pytest.fixture
async def agents(world: World, tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """An agent on every node, by the address of its metrics port. node3's has missed one of the endpoints."""
    common = [*(objects.node(node) for node in world.nodes), objects.service("web", *CLUSTER_IPS)]
    whole = manifests(tmp_path / "whole", [*common, *objects.endpoint_slices("web", world.web)])
    behind = manifests(tmp_path / "behind", [*common, *objects.endpoint_slices("web", world.web[:2])])
    bound = {node.name: f"{node.ip}:{PORT}" for node in world.nodes} | {"node3": f"127.0.0.1:{PORT}"}
    for node in world.nodes:
        source = behind if node.name == "node3" else whole
        await node.kroute(
            "run", "--manifests", str(source), "--node-name", node.name, "--metrics-bind-address", bound[node.name]
        )
    for node in world.nodes:
        await node.processes[-1].ready()
    yield bound
    for node in world.nodes:
        for running in node.processes:
            await running.terminate()
        assert await (await node.kroute("cleanup")).wait() == 0


@pytest.fixture
def api(world: World, tmp_path: Path, agents: dict[str, str]) -> Iterator[ApiServer]:
    """An API server on node1 that has the agents' pods."""
    pods = [pod(node, tmp_path / f"{node.name}-programs", agents[node.name]) for node in world.nodes]
    server = ApiServer(world.cluster.node("node1"), tmp_path, pods)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def kubectl_kroute(world: World, api: ApiServer, *arguments: str) -> tuple[int, str]:
    """Run it on the client's machine; return its exit code and its output."""
    program = [sys.executable, "-c", "from kroute.cli.kubectl.command import main; main()"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": "/tmp"}
    command = [*program, *arguments, "--kubeconfig", str(api.kubeconfig), "--timeout", "600s"]
    with world.cluster.client.namespace.inside():
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=800, check=False
        )
    return done.returncode, done.stdout + done.stderr


async def whole_bundle(node: Node, directory: Path) -> dict[str, bytes]:
    """Return the files of a bundle. What a machine cannot give in time, because it stood still, is left out of it."""
    target = directory / f"bundle-{len(node.processes)}.tar.gz"
    process = await node.kroute("bundle", "--file", str(target))
    assert await process.wait() == 0, process.tail()
    with tarfile.open(target) as archive:
        files = {it.name.partition("/")[2]: archive.extractfile(it).read() for it in archive.getmembers()}  # type: ignore[union-attr]
    index = json.loads(files["index.json"])
    assert {
        it["name"]: it["reason"] for it in index["parts"] if it["reason"] and it["name"] not in NOT_IN_THE_LAB
    } == {}
    return files


async def test_every_node_is_asked_and_the_one_that_has_missed_a_change_is_marked(
    world: World, api: ApiServer, agents: dict[str, str]
) -> None:
    assert shutil.which("kubectl", path=str(Path(sys.executable).parent))
    code, text = kubectl_kroute(world, api, "status", "-o", "json")
    items = {it["node"]: it for it in json.loads(text)["items"]}
    assert {name: (it["via"], it["error"]) for name, it in items.items()} == {
        "node1": ("pods/proxy", ""),
        "node2": ("pods/proxy", ""),
        "node3": ("pods/exec", ""),
    }
    assert {name: it["status"]["problems"] for name, it in items.items()} == {"node1": [], "node2": [], "node3": []}
    missed = world.web[2]
    assert {name: len(it["differences"]) for name, it in items.items()} == {"node1": 0, "node2": 0, "node3": 2}
    for sentence, address in zip(items["node3"]["differences"], (missed.ip, missed.ip6), strict=True):
        assert f"lacks the real servers {address}:8080=1" in sentence
    assert code == 1
    code, text = kubectl_kroute(world, api, "explain", f"{CLUSTER_IPS[0]}:8080", "--node", "node2")
    assert code == 0, text
    assert f"in  {missed.ip}:8080" in text
    code, text = kubectl_kroute(world, api, "explain", CLUSTER_IPS[1], "--node", "node2")
    assert code == 0, text
    assert f"TCP [{CLUSTER_IPS[1]}]:8080" in text


async def test_rates_plans_and_bundles_of_nodes(
    world: World, api: ApiServer, agents: dict[str, str], tmp_path: Path
) -> None:
    code, text = kubectl_kroute(world, api, "top", "services", "-o", "json")
    found = json.loads(text)
    assert (code, found["unanswered"]) == (0, {})
    assert [(it["name"], it["nodes"]) for it in found["items"]] == [("default/web", len(agents))]
    code, text = kubectl_kroute(world, api, "top", "--sort-by", "name", "--filter", "web")
    assert code == 0, text
    assert [line.split()[0] for line in text.splitlines()] == ["Node", *sorted(agents)]
    code, text = kubectl_kroute(world, api, "plan", "--node", "node1")
    assert code == 0, text
    assert "nothing to change" in text
    code, text = kubectl_kroute(world, api, "plan", "--node", "node1", "-o", "name")
    assert code == 0, text
    code, text = kubectl_kroute(world, api, "bundle", "--node", "node1", "--directory", str(tmp_path / "bundles"))
    assert code == 0, text
    [path] = (tmp_path / "bundles").iterdir()
    with tarfile.open(path) as archive:
        assert any(it.name.endswith("/kernel/ipvs.json") for it in archive.getmembers())


async def test_a_node_says_on_one_screen_that_all_is_well_and_gives_a_whole_bundle(
    world: World, agents: dict[str, str], tmp_path: Path
) -> None:
    node = world.cluster.node("node1")
    code, status = await ask_json(node, "status", "--wait", "600s")
    assert (code, status["state"], status["pending"], status["problems"]) == (0, "ready", 0, [])
    assert (status["served"]["services"], status["served"]["virtualServers"], status["served"]["missing"]) == (1, 2, 0)
    files = await eventually(partial(whole_bundle, node, tmp_path), within=1)
    ipvs = json.loads(files["kernel/ipvs.json"])
    assert {it["address"] for it in ipvs["virtual_servers"]} == set(CLUSTER_IPS)
    assert {CLUSTER_IPS[0], CLUSTER_IPS[1]} <= set(json.loads(files["kernel/addresses.json"])["bound"])
    [agent] = [it for it in node.processes if it.running]
    await agent.kill()
    code, status = await ask_json(node, "status")
    assert (code, status["state"], status["served"]["virtualServers"]) == (6, "no agent", 2)
