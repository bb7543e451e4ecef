"""Whatever the agent opens may fail for lack of a resource: each place is tried with each error, and recovers."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute import backoff
from kroute.kernel.net.addresses import InterfaceAddress
from kroute.kernel.net.monitor import Event, Overrun
from kroute.model.node_facts import NodeInterfaces
from kroute.watchers.manifests import file as manifest_file
from kroute.watchers.manifests import watcher as manifest_watcher
from kroute.watchers.node import NodeWatcher, default_source
from tests.unit.fake_node import FakeNode, plan, server

NUMBERS = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EIO]
each_error = pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "_FIRST_RETRY", 0.0)


def failing(times: int, number: int, real: Callable[..., object]) -> Callable[..., object]:
    """Return `real` so that its first calls fail."""
    left = [OSError(number, os.strerror(number)) for _ in range(times)]

    def call(*arguments: object, **named: object) -> object:
        if left:
            raise left.pop()
        return real(*arguments, **named)

    return call


class Source:
    """Addresses that cannot be opened or read at first."""

    def __init__(self, number: int) -> None:
        self._open = failing(2, number, lambda: None)
        self._read = failing(2, number, lambda: [InterfaceAddress("eth0", "192.168.9.1", 24)])

    async def __aenter__(self) -> "Source":
        self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def of_node(self) -> object:
        return self._read()


class Monitor:
    """A monitor without events."""

    async def __aenter__(self) -> "Monitor":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def next(self) -> list[Event | Overrun]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError


@each_error
async def test_the_node_is_followed_in_the_end(number: int) -> None:
    told: asyncio.Queue[NodeInterfaces] = asyncio.Queue()
    source_towards = failing(2, number, lambda _: "192.168.9.1")
    watcher = NodeWatcher(
        "d0", told.put_nowait, monitor=Monitor(), addresses=Source(number), source_towards=source_towards
    )
    with capture_logs() as logs:
        running = asyncio.create_task(watcher.run())
        async with asyncio.timeout(10):
            assert set((await told.get())[0]) == {"192.168.9.1"}
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    assert [line["event"] for line in logs] == ["resources.exhausted"]


@each_error
def test_a_socket_that_cannot_be_had_is_not_taken_for_a_missing_route(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(socket.socket):
        def __init__(self, *_: object) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", Refused)
    with pytest.raises(OSError, match=os.strerror(number)):
        default_source(socket.AF_INET)


@each_error
async def test_manifests_are_followed_in_the_end(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("{apiVersion: v1, kind: Service, metadata: {name: a, namespace: b}, spec: {}}")
    changes = manifest_watcher.DirectoryChanges
    monkeypatch.setattr(manifest_watcher, "DirectoryChanges", failing(2, number, changes))
    if number != errno.EIO:  # EIO is the file's own fault: a broken disk, or no regular file (/proc/self/mem)
        monkeypatch.setattr(manifest_file, "_read", failing(1, number, manifest_file._read))
    taken: asyncio.Queue[object] = asyncio.Queue()
    running = asyncio.create_task(manifest_watcher.ManifestWatcher(tmp_path, taken.put_nowait).run())
    async with asyncio.timeout(10):
        assert "name='a'" in str(await taken.get())
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@each_error
async def test_a_controller_says_once_what_has_run_out_and_writes_in_the_end(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FakeNode(tmp_path)
    monkeypatch.setattr(node.service_proxy, "read", failing(3, number, node.service_proxy.read))
    with capture_logs() as logs:
        await node.start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
        for _ in range(4):
            await node.wait(31)
    assert (6, "10.96.0.1", 80) in node.kernel.virtual_servers
    assert len([line for line in logs if line["event"] == "controller.failed"]) == 1
