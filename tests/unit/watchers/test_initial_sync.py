"""Each source is read once, or one line says why it cannot be."""

import asyncio
import json
from pathlib import Path

import pytest

from kroute.checks.finding import Finding, Level
from kroute.cli import check, plan
from kroute.inspect.dry_run import PlannedChange, PlannedChanges
from kroute.kernel.errors import KernelError
from kroute.model.node_facts import NO_INTERFACES
from kroute.model.objects import Applied, Service
from kroute.model.plan import NodePlan
from kroute.settings import Settings
from kroute.watchers import initial_sync
from kroute.watchers.initial_sync import InitialSyncError
from tests.apiserver import ApiServer
from tests.unit.command_line import exit_code
from tests.virtual_time import virtual

NODE = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node1"}, "spec": {}, "status": {}}
WEB = {
    "kind": "Service",
    "apiVersion": "v1",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ports": [{"port": 80}]},
}


def services(changes: list) -> list[str]:
    return [str(it.item.key) for it in changes if isinstance(it, Applied) and isinstance(it.item, Service)]


@pytest.fixture
def manifests(tmp_path: Path) -> Settings:
    directory = tmp_path / "manifests"
    directory.mkdir()
    for item in (NODE, WEB):
        (directory / f"{item['kind']}.json").write_text(json.dumps(item))
    return Settings(node_name="node1", manifests=directory)


def by_api(server: ApiServer, directory: Path) -> Settings:
    return Settings(node_name="node1", kubeconfig=server.kubeconfig(directory / "kubeconfig"))


async def test_manifests_are_read_once(manifests: Settings) -> None:
    assert services(await initial_sync.initial_sync(manifests)) == ["default/web"]
    node = await initial_sync.node_object(manifests)
    assert node is not None
    assert node.key.name == "node1"


async def test_the_api_is_read_once(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.apply(NODE)
        server.apply(WEB)
        assert services(await initial_sync.initial_sync(by_api(server, tmp_path))) == ["default/web"]


async def test_a_server_out_of_reach_is_not_waited_for(tmp_path: Path) -> None:
    async with ApiServer() as server, server.out_of_reach():
        with pytest.raises(InitialSyncError, match="does not answer"):
            await initial_sync.initial_sync(by_api(server, tmp_path))


@virtual()
async def test_a_list_that_is_refused_is_waited_for_only_so_long(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.access.forbid("list", "nodes")
        server.access.forbid("watch", "nodes")
        with pytest.raises(InitialSyncError, match=r"no initial sync of Node after 60 s; .*`kroute check`"):
            await initial_sync.initial_sync(by_api(server, tmp_path))
        assert asyncio.get_running_loop().time() == pytest.approx(initial_sync.PATIENCE, abs=1)


async def test_a_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    with pytest.raises(InitialSyncError, match="cannot be followed"):
        await initial_sync.initial_sync(Settings(node_name="node1", manifests=tmp_path / "gone"))


# What becomes of the objects


async def test_the_plans_are_those_of_an_agent(manifests: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interfaces(_: str) -> object:
        return NO_INTERFACES

    monkeypatch.setattr(plan, "read_node_interfaces", interfaces)
    assert [str(it.key) for it in await plan.plans_of(manifests)] == [str(NodePlan.key), "default/web"]


CHANGE = PlannedChange("default/web", "address", "add", "bind 10.96.0.10 (kube-ipvs0)")
RULES = PlannedChange("", "rules", "edit", "write the IPv4 rules")


@pytest.mark.parametrize(
    ("found", "code", "lines"),
    [
        (PlannedChanges([], []), 0, ["nothing to change"]),
        (
            PlannedChanges([CHANGE, RULES], ["it is odd"]),
            5,
            [
                "default/web",
                "  + bind 10.96.0.10 (kube-ipvs0)",
                "(no Service)",
                "  ~ write the IPv4 rules",
                "2 changes",
                "it is odd",
            ],
        ),
        (KernelError("there is no kernel"), 1, []),
        (InitialSyncError("there is no list"), 1, []),
    ],
    ids=["nothing", "changes", "no kernel", "no list"],
)
def test_plan_says_what_changes_by_its_exit_code_too(
    found: PlannedChanges | Exception,
    code: int,
    lines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def dry_run(_: Settings) -> PlannedChanges:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(plan, "changes_of", dry_run)
    assert exit_code("plan", "--state-dir", tmp_path) == code
    output = capsys.readouterr()
    assert output.out.splitlines() == lines
    if isinstance(found, Exception):
        assert output.err == f"kroute: {found}\n"


@pytest.mark.parametrize(("level", "code"), [(Level.OK, 0), (Level.WARNING, 0), (Level.FAIL, 1)])
def test_check_fails_for_a_missing_prerequisite_alone(
    level: Level, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def found(_: Settings) -> list[Finding]:
        return [Finding("clock", level, "is odd", "wind it")]

    monkeypatch.setattr(check, "findings_of", found)
    assert exit_code("check", "-o", "json", "--state-dir", tmp_path) == code
    assert json.loads(capfd.readouterr().out) == {
        "apiVersion": "kroute.io/v1",
        "kind": "FindingList",
        "ready": code == 0,
        "items": [{"check": "clock", "level": level.value, "message": "is odd", "nextStep": "wind it"}],
    }
    assert exit_code("check", "--state-dir", tmp_path) == code
    assert capfd.readouterr().out.splitlines() == [f"{level.value:<9}clock  is odd", f"{'':<16}-> wind it"]
