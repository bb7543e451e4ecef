"""`kubectl kroute`: the real kubectl asks agents through the stand-in API server, by the pod proxy and by exec."""

import asyncio
import io
import json
import os
import sys
import tarfile
import tomllib
from collections.abc import AsyncIterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kroute import __version__
from kroute.base import logs
from kroute.cli.fleet import survey
from kroute.cli.kubectl import command, top
from kroute.cli.kubectl.printing import NodeAnswer
from kroute.cli.show.live import RateList, RateRow
from kroute.cli.terminal.output import DIFFERENT, DONE, FAILURE, NO_AGENT, NOT_SERVED
from kroute.model.document import encode
from tests.unit.cli.fleet.cluster import BEHIND, Cluster, cluster

ROOT = Path(__file__).parents[4]

pytestmark = pytest.mark.kubectl


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


async def test_nodes_that_have_no_pod_are_counted_with_where_the_reason_is(
    nodes: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await nodes.node("node1", port_is_open=True)
    container = {"name": "kroute", "command": ["kroute", "run"]}
    daemon_set = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kroute", "namespace": "kube-system", "labels": {"app.kubernetes.io/name": "kroute"}},
        "spec": {"template": {"spec": {"containers": [container]}}},
        "status": {"desiredNumberScheduled": 3, "currentNumberScheduled": 1},
    }
    nodes.api.apply(daemon_set)
    assert await run(nodes, "status") == FAILURE
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("NO POD")]
    assert "2 of 3 nodes without a pod of DaemonSet kroute" in line
    assert "kubectl -n kube-system describe daemonset kroute" in line
    assert await run(nodes, "status", "--node", "node1") == DONE
    nodes.api.access.forbid("list", "daemonsets")
    assert await run(nodes, "status") == DONE
    daemon_set["status"] = {"desiredNumberScheduled": 1, "currentNumberScheduled": 1}
    nodes.api.access.allow_all()
    nodes.api.apply(daemon_set)
    assert await run(nodes, "status") == DONE


async def test_a_node_without_an_agent_says_what_its_kernel_has_and_one_node_may_be_named(
    nodes: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await nodes.node("node1", is_running=False)
    code, items = await asked(nodes, capsys, "status", "--node", "node1")
    assert (code, items["node1"]["status"]["state"]) == (1, "no agent")
    assert await run(nodes, "status", "--node", "node9") == NO_AGENT
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


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin's programs in PATH, made as the installation makes them of pyproject.toml."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    directory = tmp_path / "plugins"
    directory.mkdir()
    for name in ("kubectl-kroute", "kubectl_complete-kroute"):
        module, _, function = scripts[name].partition(":")
        program = directory / name
        program.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


async def kubectl(*arguments: str) -> tuple[int | None, list[str]]:
    """The exit code of the real kubectl, and the lines of its standard output."""
    process = await asyncio.create_subprocess_exec("kubectl", *arguments, stdout=asyncio.subprocess.PIPE)
    text, _ = await process.communicate()
    return process.returncode, text.decode().splitlines()


@pytest.mark.usefixtures("plugins")
async def test_kubectl_runs_it_as_its_plugin(nodes: Cluster) -> None:
    await nodes.node("node1", port_is_open=True)
    code, lines = await kubectl("kroute", "status", *nodes.options)
    assert code == 0
    assert lines[1].split()[:2] == ["node1", "ready"]
    assert (await kubectl("kroute"))[0] == 0


@pytest.mark.usefixtures("plugins")
async def test_kubectl_completes_its_words() -> None:
    """`kubectl __complete` is what the shell's script calls, in every shell."""
    _, lines = await kubectl("__complete", "kroute", "show", "serv")
    assert lines == ["services", "service", ":4"]
    _, lines = await kubectl("__complete", "kroute", "st")
    assert [line.split("\t")[0] for line in lines] == ["status", ":4"]


async def test_without_a_cluster_the_reason_is_kubectls(nodes: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with nodes.api.out_of_reach():
        assert await run(nodes, "status") == FAILURE
    assert "refused" in capsys.readouterr().err


# The other commands


async def test_without_a_command_it_shows_its_help(nodes: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        command.main([])
    text = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0
    for name, each in command.plugin.commands.items():
        assert f"{name} {' '.join((each.help or '').partition(chr(10) * 2)[0].split())}" in text


def rates(*rows: tuple[str, int, float]) -> RateList:
    """What `kroute show -w -o json` writes: Service, active connections, packets per second."""
    return RateList([RateRow(name, "TCP", "10.96.0.10", 80, 1, active, 1, 2.0, packets, 10.0, 20.0)
                     for name, active, packets in rows])  # fmt: skip


def program(directory: Path, node: str, says: str, code: int = 0, words: str = "*") -> None:
    """Put a program in the place of the node's `kroute`. It takes only these words."""
    path = directory / f"{node}-bin" / "kroute"
    output = directory / f"{node}-output"
    output.write_text(says)
    path.write_text(f'#!/bin/sh\ncase "$*" in {words}) cat {output}; exit {code};; esac\necho "took $*" >&2; exit 2\n')


async def test_top_adds_the_rates_of_all_nodes(
    nodes: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = '"show -w --count 1 --interval 3s -o json"'
    for name in ("node1", "node2", "node3"):
        await nodes.node(name, is_running=False)
    program(
        tmp_path, "node1", encode(rates(("a/web", 5, 100.0), ("a/web", 1, 1.0), ("a/dns", 0, 3.0))).decode(), 0, words
    )
    program(tmp_path, "node2", encode(rates(("a/dns", 2, 900.0))).decode(), 0, words)
    program(tmp_path, "node3", "", 1)
    arguments = ("top", "services", "--interval", "3s", "-o", "json")
    assert await run(nodes, *arguments) == FAILURE
    found = json.loads(capsys.readouterr().out)
    assert [(it["name"], it["nodes"], it["active"], it["packets"], it["bytesIn"]) for it in found["items"]] == [
        ("a/dns", 2, 2, 903.0, 20.0),
        ("a/web", 1, 6, 101.0, 20.0),
    ]
    assert found["unanswered"] == {"node3": "kubectl exec ended with 1"}
    assert await run(nodes, *arguments[:1], *arguments[2:-2], "--sort-by", "name", "-o", "name") == FAILURE
    assert capsys.readouterr().out.split() == ["node1", "node2"]


async def test_an_agent_that_cannot_say_its_rates_is_named_with_the_reason(
    nodes: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await nodes.node("node1", is_running=False)
    program(tmp_path, "node1", '{"items": 7}')
    assert await run(nodes, "top") == FAILURE
    assert f"NO ANSWER  node1: {top.OTHER_VERSION}" in capsys.readouterr().out


async def test_plan_tells_something_to_change_from_a_failure(
    nodes: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("node1", "node2"):
        await nodes.node(name, port_is_open=True)
    program(tmp_path, "node1", '{"items": []}', DONE, '"plan --output json"')
    program(tmp_path, "node2", '{"items": [1]}', DIFFERENT, '"plan --output json"')
    code, items = await asked(nodes, capsys, "plan")
    assert (code, items["node2"]["exitCode"]) == (DIFFERENT, DIFFERENT)
    program(tmp_path, "node2", "", FAILURE)
    assert (await asked(nodes, capsys, "plan"))[0] == FAILURE


@pytest.mark.parametrize(
    ("codes", "code"),
    [((0, 0), 0), ((3, 3), 3), ((0, 3), 1), ((0, 5), 5), ((5, 5), 5), ((1, 5), 1), ((1, 1), 1)],
)
def test_the_exit_code_is_that_of_the_nodes_if_they_agree(codes: tuple[int, ...], code: int) -> None:
    assert command.code_of([NodeAnswer(f"node{it}", it) for it in codes]) == code
    assert command.code_of([NodeAnswer("a", error="no"), *(NodeAnswer("b", it) for it in codes)]) == FAILURE


async def test_a_pod_is_refused_a_connection_if_any_node_refuses_it(
    nodes: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, code in (("node1", DONE), ("node2", NOT_SERVED), ("node3", DONE)):
        await nodes.node(name, port_is_open=True)
        program(tmp_path, name, '{"items": []}', code, "explain*")
    code, items = await asked(nodes, capsys, "explain", "pod/shop/web-1:80", "--from", "pod/shop/client")
    assert (code, items["node2"]["differences"]) == (NOT_SERVED, [])
    code, items = await asked(nodes, capsys, "explain", "10.96.0.10:80")
    assert (code, items["node2"]["differences"]) == (FAILURE, ["exit code 3, others 0"])


def test_nodes_that_differ_are_no_success() -> None:
    assert command.code_of([NodeAnswer("a", 0, differences=["version 1"]), NodeAnswer("b", 0)]) == FAILURE


async def test_a_bundle_of_each_node_is_a_file_of_its_own(
    nodes: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await nodes.node("node1", is_running=False)
    await nodes.node("node2", is_running=False)
    program(tmp_path, "node2", "no archive", 0, '"bundle --file -"')
    assert await run(nodes, "bundle", "--directory", str(tmp_path / "bundles")) == FAILURE
    output = capsys.readouterr()
    [path] = (tmp_path / "bundles").iterdir()
    assert f"{path}: " in output.out
    assert "no bundle of node2: its answer is not an archive" in output.err
    assert await run(nodes, "bundle", "--directory", str(path / "below"), "--node", "node1") == FAILURE
    assert f"no bundle of node1: {path}" in capsys.readouterr().err
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
        assert any(name.endswith("/index.json") for name in archive.getnames())


async def test_versions_are_listed_with_their_nodes(nodes: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    await nodes.node("node1", port_is_open=True)
    await nodes.node("node2", is_running=False)
    capsys.readouterr()
    assert await run(nodes, "version", "-o", "json") == FAILURE
    found = json.loads(capsys.readouterr().out)
    assert (found["client"], found["agents"]) == (__version__, {__version__: ["node1"]})
    assert found["unanswered"] == {"node2": "no agent answers"}
    async with nodes.api.out_of_reach():
        assert await run(nodes, "version") == FAILURE
        assert await run(nodes, "version", "--client") == DONE
    output = capsys.readouterr()
    assert output.out.splitlines() == [f"kubectl-kroute  {__version__}"] * 2
    assert "refused" in output.err


def complete(*words: str) -> list[str]:
    """What `kubectl_complete-kroute` writes."""
    written = io.StringIO()
    with patch.object(sys, "argv", ["kubectl_complete-kroute", *words]), redirect_stdout(written):
        command.complete()
    return written.getvalue().splitlines()


async def test_words_are_completed_by_the_rules_of_kubectl(nodes: Cluster, tmp_path: Path) -> None:
    flags = nodes.options[:2]
    await nodes.node("node1", port_is_open=True)
    await nodes.node("node2", is_running=False)
    summary = "Show for each node what it serves, what is wrong there, and in what it differs from the others."
    assert complete("st") == [f"status\t{summary}", ":4"]
    assert complete("top", "s") == ["services", ":4"]
    assert complete("show", "ser") == ["services", "service", ":4"]
    assert complete("bundle", "--directory", "") == [":16"]
    assert complete("status", "--kubeconfig", "") == [":0"]
    assert await asyncio.to_thread(complete, "status", *flags, "--node", "") == ["node1", "node2", ":4"]
    program(tmp_path, "node1", "default/web\nkube-system/dns\n", DONE, '"show services -o name"')
    assert await asyncio.to_thread(complete, "explain", *flags, "def") == ["default/web", ":4"]
    async with nodes.api.out_of_reach():
        assert await asyncio.to_thread(complete, "explain", *flags, "def") == [":4"]
