"""A directory of manifests is watched like a cluster."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from kroute.kernel import inotify
from kroute.model.kinds import POLICY_KINDS, WATCHED
from kroute.model.objects import EndpointSlice, LabelSelector, NetworkPolicy, Node, Pod, Service
from kroute.watchers import manifests as manifests_watcher
from kroute.watchers.kubernetes.errors import ConfigurationError
from kroute.watchers.manifests import ManifestWatcher, Part, read_manifest
from tests.unit.planning.policies.cluster import ingress, pods_with
from tests.unit.watching import PATIENCE, Follower, key, labelled, running, service

WEB = """\
apiVersion: v1
kind: Service
metadata:
  name: web
  creationTimestamp: 2026-11-20T15:45:02Z
  annotations:
    kroute.io/scheduler: lc
spec:
  clusterIP: 10.96.0.10
  ports:
  - port: 80
"""
SLICE = """\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: shop
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
endpoints:
- addresses: [172.20.1.1]
ports:
- port: 8080
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests_watcher, "VANISHED_FOR", 0.05)


@asynccontextmanager
async def following(directory: Path) -> AsyncIterator[Follower]:
    follower = Follower()
    async with running(ManifestWatcher(directory, follower).run()):
        await follower.until_listed()
        yield follower


def write(directory: Path, name: str, *items: dict[str, Any]) -> Path:
    path = directory / name
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    return path


def events(logs: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [entry for entry in logs if entry["event"] == name]


async def test_an_empty_directory_is_listed(tmp_path: Path) -> None:
    async with following(tmp_path) as follower:
        assert follower.take() == ["listed Service", "listed EndpointSlice", "listed Node"]


async def test_yaml_json_lists_and_several_documents_are_read(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(f"{WEB}---\n---\n{SLICE}")
    write(tmp_path, "more.json", service("a"), service("b", namespace="shop"))
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node1"}}
    (tmp_path / "node.yml").write_text(json.dumps(node))
    served = {"kind": "ServiceList", "apiVersion": "v1", "items": [{"metadata": {"name": "c"}}]}
    (tmp_path / "raw.json").write_text(json.dumps(served))
    async with following(tmp_path) as follower:
        assert {(kind, str(name)) for kind, name in follower.items} == {
            (Service, "default/web"),
            (EndpointSlice, "shop/web-1"),
            (Service, "default/a"),
            (Service, "shop/b"),
            (Service, "default/c"),
            (Node, "node1"),
        }
        assert follower.listed == [Service, EndpointSlice, Node]
        web = follower.items[Service, key("web")]
        assert web.metadata.creation_timestamp == "2026-11-20T15:45:02Z"


async def test_files_that_come_change_and_go_are_followed(tmp_path: Path) -> None:
    async with following(tmp_path) as follower:
        follower.take()
        path = write(tmp_path, "a.json", service("a"), service("b"))
        await follower.until(lambda: follower.names == {"a", "b"})
        write(tmp_path, "a.json", service("a", type="NodePort"), service("c"))
        await follower.until(lambda: follower.names == {"a", "c"})
        path.unlink()
        await follower.until(lambda: not follower.items)
    assert follower.take() == [
        *("applied a", "applied b"),
        *("applied a", "deleted b", "applied c"),
        *("deleted a", "deleted c"),
    ]


async def test_what_does_not_change_is_not_passed_on(tmp_path: Path) -> None:
    write(tmp_path, "a.json", service("a"), service("b"))
    async with following(tmp_path) as follower:
        follower.take()
        write(tmp_path, "a.json", service("b"), service("a"))
        write(tmp_path, "c.json", service("c"))
        await follower.until(lambda: "c" in follower.names)
        assert follower.take() == ["applied c"]


@pytest.mark.parametrize(
    "half", ["", "\n", '{"kind": "List", "items": [{"kind": "Serv', "kind: Service\n  metadata: {", "\x00\xff"]
)
@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
async def test_a_half_written_file_keeps_what_it_said_and_says_so_once(tmp_path: Path, name: str, half: str) -> None:
    write(tmp_path, name, service("a"))
    with capture_logs() as logs:
        async with following(tmp_path) as follower:
            for _ in range(2):
                (tmp_path / name).write_text(half)
                write(tmp_path, f"seen-{_}.json", service(f"seen-{_}"))
                await follower.until(lambda _=_: f"seen-{_}" in follower.names)
            assert "a" in follower.names
            write(tmp_path, name, service("b"))
            await follower.until(lambda: "b" in follower.names)
    assert "a" not in follower.names
    assert len(events(logs, "manifest.unreadable")) == 1
    assert len(events(logs, "manifest.readable")) == 1


async def test_a_file_is_read_when_its_writer_has_closed_it(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", service("a"))
    with capture_logs() as logs:
        async with following(tmp_path) as follower:
            text = json.dumps({"kind": "List", "items": [service("a"), service("b")]})
            with path.open("w") as file:
                file.write(text[:50])
                file.flush()
                write(tmp_path, "z.json", service("z"))
                await follower.until(lambda: "z" in follower.names)
                assert follower.names == {"a", "z"}
                file.write(text[50:])
            await follower.until(lambda: follower.names == {"a", "b", "z"})
    assert events(logs, "manifest.unreadable") == []


async def test_the_faults_that_are_there_now_can_be_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "a.json", service("a"))
    follower = Follower()
    watcher = ManifestWatcher(tmp_path, follower)
    async with running(watcher.run()):
        await follower.until(lambda: "a" in follower.names)
        assert watcher.faults == []
        (tmp_path / "a.json").write_text("{")
        write(tmp_path, "b.json", service("b"))
        await follower.until(lambda: "b" in follower.names)
        [fault] = watcher.faults
        assert fault.startswith(f"{tmp_path}/a.json: ")
        write(tmp_path, "a.json", service("c"))
        await follower.until(lambda: "c" in follower.names)
        assert watcher.faults == []


async def test_a_file_that_is_moved_or_replaced_loses_nothing_on_the_way(tmp_path: Path) -> None:
    path = write(tmp_path, "b.json", service("a"))
    with capture_logs() as logs:
        async with following(tmp_path) as follower:
            follower.take()
            path.rename(tmp_path / "a.json")  # another name
            write(tmp_path, "seen.json", service("seen"))
            await follower.until(lambda: "seen" in follower.names)
            (tmp_path / "a.json").rename(tmp_path / "a.json~")  # as vim saves
            write(tmp_path, "a.json", service("a", type="NodePort"))
            (tmp_path / "new").write_text((tmp_path / "a.json~").read_text())
            (tmp_path / "new").rename(tmp_path / "a.json")  # as programs save that replace a file atomically
            await follower.until(lambda: follower.items[Service, key("a")].spec.type == "ClusterIP")
    assert "deleted" not in " ".join(follower.take())
    assert events(logs, "manifest.duplicate") == []


async def test_of_an_object_in_two_files_the_later_file_name_counts(tmp_path: Path) -> None:
    write(tmp_path, "a.json", service("web", clusterIP="10.96.0.1"))
    with capture_logs() as logs:
        async with following(tmp_path) as follower:
            later = write(tmp_path, "b.json", service("web", clusterIP="10.96.0.2"))
            await follower.until(lambda: follower.items[Service, key("web")].spec.cluster_ip == "10.96.0.2")
            later.unlink()
            await follower.until(lambda: follower.items[Service, key("web")].spec.cluster_ip == "10.96.0.1")
    (entry,) = events(logs, "manifest.duplicate")
    assert (entry["object"], entry["files"], entry["counts"]) == (
        "Service default/web",
        ["a.json", "b.json"],
        "b.json",
    )


async def test_a_malformed_object_spoils_nothing_else_and_keeps_what_it_was(tmp_path: Path) -> None:
    write(tmp_path, "a.json", service("a"), service("b"))
    with capture_logs() as logs:
        async with following(tmp_path) as follower:
            write(tmp_path, "a.json", service("a", ports="none"), service("c"), {"kind": "Service"}, 7)
            await follower.until(lambda: "c" in follower.names)
    assert follower.names == {"a", "c"}
    (entry,) = events(logs, "manifest.faulty")
    assert entry["problems"] == [
        "Service default/a: Expected `array | null`, got `str` - at `$.spec.ports`",
        "a Service without metadata.name",
        "expected an object with apiVersion and kind, found int",
    ]


async def test_a_malformed_policy_lets_nobody_in_whatever_it_was_before(tmp_path: Path) -> None:
    kinds = (*WATCHED, *POLICY_KINDS)
    sound = ingress(pods_with(app="client"), selector={"matchLabels": {"app": "web"}})
    write(tmp_path, "a.json", sound)
    follower = Follower()
    watcher = ManifestWatcher(tmp_path, follower, kinds)
    async with running(watcher.run()):
        await follower.until(lambda: len(follower.listed) == len(kinds))
        name = NetworkPolicy, key("policy", "shop")
        assert follower.items[name] == msgspec.convert(sound, NetworkPolicy)
        write(tmp_path, "a.json", {**sound, "spec": {**sound["spec"], "ingress": [{"from": "everybody"}]}})
        await follower.until(lambda: bool(watcher.faults))
        spec = follower.items[name].spec
        assert (spec.ingress, spec.egress, spec.policy_types) == (None, None, ("Ingress", "Egress"))
        assert spec.pod_selector == msgspec.convert(sound["spec"]["podSelector"], LabelSelector)
        assert watcher.faults[0].endswith("; it allows nothing to its pods")
        write(tmp_path, "a.json", {**sound, "spec": {"podSelector": "everything"}}, service("read"))
        await follower.until(lambda: (Service, key("read")) in follower.items)
        assert follower.items[name].spec == spec, "nothing is known of its pods: it stays as it was"


async def test_kinds_of_the_same_name_in_other_groups_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a.json", {**service("knative"), "apiVersion": "serving.knative.dev/v1"}, service("ours"))
    async with following(tmp_path) as follower:
        assert follower.names == {"ours"}


async def test_what_does_not_concern_this_proxy_is_left_out(tmp_path: Path) -> None:
    slice_ = {"kind": "EndpointSlice", "metadata": {"name": "s"}, "addressType": "IPv4"}
    write(
        tmp_path,
        "a.json",
        service("headless", clusterIP="None"),
        labelled(slice_, **{"service.kubernetes.io/headless": ""}),
        {"kind": "Deployment", "metadata": {"name": "web"}},
        service("web"),
    )
    async with following(tmp_path) as follower:
        assert follower.names == {"web"}
        write(tmp_path, "a.json", service("web", clusterIP="None"))
        await follower.until(lambda: not follower.items)


async def test_other_files_are_not_read(tmp_path: Path) -> None:
    for name in (".a.json", "a.json.swp", "a.json~", "README.md"):
        write(tmp_path, name, service("a"))
    async with following(tmp_path) as follower:
        assert follower.names == set()


async def test_the_files_of_a_config_map_change_together(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        write(tmp_path / version, "a.json", service("a", clusterIP=f"10.96.0.{version[1]}"))
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "a.json").symlink_to("..data/a.json")
    async with following(tmp_path) as follower:
        (tmp_path / "..tmp").symlink_to("v2")
        (tmp_path / "..tmp").rename(tmp_path / "..data")
        await follower.until(lambda: follower.items[Service, key("a")].spec.cluster_ip == "10.96.0.2")
        (tmp_path / "b.json").symlink_to("v1/b.json")
        os.link(write(tmp_path / "v1", "c.json", service("c")), tmp_path / "c.json")
        await follower.until(lambda: "c" in follower.names)


async def test_an_overflow_of_events_leads_to_a_look_at_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflow = inotify._HEADER.pack(-1, inotify.IN_Q_OVERFLOW, 0, 0)
    gone = write(tmp_path, "a.json", service("a"))
    async with following(tmp_path) as follower:
        real_read = os.read

        def read(descriptor: int, size: int) -> bytes:
            real_read(descriptor, size)
            return overflow

        monkeypatch.setattr(inotify.os, "read", read)
        gone.unlink()
        write(tmp_path, "b.json", service("b"))
        await follower.until(lambda: follower.names == {"b"})


async def test_many_objects_are_passed_on_in_batches(tmp_path: Path) -> None:
    write(tmp_path, "a.json", *(service(f"s{number}") for number in range(1000)))
    async with following(tmp_path) as follower:
        assert len(follower.items) == 1000
        assert max(follower.batches) <= 100


@pytest.mark.parametrize("what", ["missing", "a file", "removed later"])
async def test_a_directory_that_cannot_be_followed_is_named(tmp_path: Path, what: str) -> None:
    directory = tmp_path / "manifests"
    if what == "a file":
        directory.touch()
    elif what == "removed later":
        directory.mkdir()
        asyncio.get_running_loop().call_later(0.05, directory.rmdir)
    watcher = ManifestWatcher(directory, Follower())
    with pytest.raises(ConfigurationError, match=f"--manifests {directory} cannot be followed: "):
        await asyncio.wait_for(watcher.run(), PATIENCE)


def test_manifests_in_json_need_neither_yaml_nor_the_api_client(tmp_path: Path) -> None:
    write(tmp_path, "a.json", service("a"))
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from kroute.watchers.manifests import ManifestWatcher\n"
        "async def main():\n"
        "    listed = asyncio.Event()\n"
        "    task = asyncio.ensure_future(\n"
        f"        ManifestWatcher(Path({str(tmp_path)!r}), lambda _: listed.set()).run())\n"
        "    await listed.wait()\n"
        "asyncio.run(main())\n"
        "print([name for name in ('yaml', 'h11', 'kroute.watchers.kubernetes.api') if name in sys.modules])\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "[]"


async def test_a_deleted_file_is_given_up_in_time_also_while_others_change_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests_watcher, "VANISHED_FOR", 0.5)
    deleted = write(tmp_path, "a.json", service("a"))
    async with following(tmp_path) as follower:
        deleted.unlink()
        for port in range(1, 301):
            write(tmp_path, "b.json", service("b", ports=[{"port": port}]))
            await asyncio.sleep(0.01)
            if "a" not in follower.names:
                return
    pytest.fail("what a deleted file said is still there after 3 s")


async def test_a_file_that_comes_back_unreadable_keeps_what_it_said_and_is_not_read_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []

    def read(path: Path) -> list[Part]:
        reads.append(path)
        return read_manifest(path)

    path = write(tmp_path, "a.json", service("a"))
    async with following(tmp_path) as follower:
        monkeypatch.setattr(manifests_watcher, "VANISHED_FOR", 0.5)
        monkeypatch.setattr(manifests_watcher, "read_manifest", read)
        path.unlink()
        await asyncio.sleep(0.1)
        path.write_text("{")
        await asyncio.sleep(1.5)
    assert follower.names == {"a"}
    assert 2 <= len(reads) <= 6


async def test_changes_that_wait_to_be_read_do_not_keep_the_loop_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a scan reads files in a thread, further changes wait; the loop sleeps until the scan is over."""
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    select, turns = selector.select, 0

    def counted(timeout: float | None = None) -> object:
        nonlocal turns
        turns += 1
        return select(timeout)

    async with inotify.DirectoryChanges(tmp_path) as changes:
        (tmp_path / "first.yaml").write_text(WEB)
        assert await changes.next() == {"first.yaml"}
        (tmp_path / "second.yaml").write_text(WEB)
        monkeypatch.setattr(selector, "select", counted)
        await asyncio.to_thread(time.sleep, 0.3)
        monkeypatch.undo()
        assert turns < 10
        assert await changes.next() == {"second.yaml"}


@pytest.mark.parametrize("conditions", [[{"type": "Ready", "status": "True"}], None, "none"])
def test_a_pod_is_read_without_its_conditions(tmp_path: Path, conditions: object) -> None:
    """Those of a file say nothing of when something has changed."""
    status = {"podIP": "10.244.1.5", "conditions": conditions}
    path = write(tmp_path, "a.json", {"kind": "Pod", "metadata": {"name": "web"}, "status": status})
    [found] = read_manifest(path)
    assert isinstance(found, Pod)
    assert (found.status.pod_ip, bytes(found.status.conditions)) == ("10.244.1.5", b"")
