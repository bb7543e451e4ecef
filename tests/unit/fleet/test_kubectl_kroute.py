"""`kubectl kroute`: the real kubectl asks agents through the stand-in API server, by the pod proxy and by exec."""

import asyncio
import json
import os
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kroute import logs
from kroute.cli.kubectl import command
from kroute.fleet import survey
from tests.unit.fleet.cluster import BEHIND, Cluster, cluster

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(survey, "SECOND_LOOK", 0.0)
    async with cluster(tmp_path) as made:
        yield made


async def run(nodes: Cluster, *arguments: str) -> int:
    """Run `kubectl-kroute` in a thread; return the exit code."""

    def call() -> int:
        with patch.object(logs, "configure"), pytest.raises(SystemExit) as stop:
            command.main([*arguments, *nodes.options])
        assert isinstance(stop.value.code, int)
        return stop.value.code

    return await asyncio.to_thread(call)


async def asked(nodes: Cluster, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = await run(nodes, *arguments, "-o", "json")
    return code, {it["node"]: it for it in json.loads(capsys.readouterr().out)["items"]}


async def test_agents_are_asked_by_the_proxy_where_their_port_is_open_and_by_exec_where_it_is_not(
    nodes: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await nodes.node("node1", port_is_open=True)
    await nodes.node("node2")
    code, items = await asked(nodes, capsys, "status")
    assert {name: (it["via"], it["error"]) for name, it in items.items()} == {
        "node1": ("pods/proxy", ""),
        "node2": ("pods/exec", ""),
    }
    assert {it["status"]["node"] for it in items.values()} == {"node1", "node2"}
    assert {it["status"]["shared"] for it in items.values()} == {items["node1"]["status"]["shared"]}
    assert (code, [it["differences"] for it in items.values()]) == (0, [[], []])


async def test_a_node_that_differs_is_marked_with_what_it_has_differently(
    nodes: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("node1", "node2"):
        await nodes.node(name, port_is_open=True)
    await nodes.node("node3", *BEHIND, port_is_open=True)
    capsys.readouterr()
    assert await run(nodes, "status") == 1
    text = capsys.readouterr().out
    [line] = [line for line in text.splitlines() if line.startswith("DIFFERS")]
    assert line == "DIFFERS    node3: TCP 10.96.0.10:80 (default/web) lacks the real servers 10.244.2.5:8080=1"
    marks = {line.split()[0]: line.split()[-1] for line in text.splitlines() if line.startswith("node")}
    assert marks == {"node1": "no", "node2": "no", "node3": "yes"}


async def test_a_node_that_does_not_answer_costs_only_itself(
    nodes: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await nodes.node("node1", port_is_open=True)
    await nodes.node("node2", port_is_open=True, is_running=False)
    nodes.api.access.forbid("create", "pods/exec")
    code, items = await asked(nodes, capsys, "status")
    assert code == 1
    assert items["node1"]["status"]["state"] == "ready"
    assert "connection refused" in items["node2"]["error"]
    assert 'cannot create resource "pods/exec"' in items["node2"]["error"]


async def test_a_node_without_an_agent_says_what_its_kernel_has_and_one_node_may_be_named(
    nodes: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await nodes.node("node1", is_running=False)
    code, items = await asked(nodes, capsys, "status", "--node", "node1")
    assert (code, items["node1"]["status"]["state"]) == (1, "no agent")
    assert await run(nodes, "status", "--node", "node9") == 2
    assert "no pod of kroute on node node9" in capsys.readouterr().err


async def test_other_commands_run_on_every_node_with_their_outputs_side_by_side(
    nodes: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await nodes.node("node1")
    code = await run(nodes, "show", "weather")
    shown = capsys.readouterr()
    assert code == 1
    assert "== node1 ==" in shown.out
    assert "no answer: kroute: cannot show 'weather'" in shown.out


async def test_kubectl_runs_it_as_its_plugin(nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is made here as the installation makes it of this line of pyproject.toml."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["kubectl-kroute"].partition(":")
    program = tmp_path / "plugins" / "kubectl-kroute"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    await nodes.node("node1", port_is_open=True)
    process = await asyncio.create_subprocess_exec(
        "kubectl", "kroute", "status", *nodes.options, stdout=asyncio.subprocess.PIPE
    )
    text, _ = await process.communicate()
    assert process.returncode == 0
    assert text.splitlines()[1].split()[:2] == [b"node1", b"ready"]


async def test_without_a_cluster_the_reason_is_kubectls(nodes: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with nodes.api.out_of_reach():
        assert await run(nodes, "status") == 2
    assert "refused" in capsys.readouterr().err
