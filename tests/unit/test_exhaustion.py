"""Whatever the agent opens may fail for lack of a resource: each place is tried with each error, and recovers."""

import asyncio
import errno
import io
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.base import backoff
from kroute.base import logs as logs_of_kroute
from kroute.base.backoff import exhaustion
from kroute.http.messages import Request, Response, text
from kroute.http.server import BriefHttpServer
from kroute.kernel import modules
from kroute.kernel.errors import KernelError
from kroute.kernel.net.addresses import InterfaceAddress
from kroute.kernel.net.monitor import Event, Overrun
from kroute.kernel.netlink.rtnetlink import interface_index
from kroute.model.node_facts import NodeInterfaces
from kroute.watchers import manifests as manifest_file
from kroute.watchers import manifests as manifest_watcher
from kroute.watchers import node as watcher_of_the_node
from kroute.watchers.node import NodeWatcher, default_source, dns_servers
from tests.openings import EVENTS, Openings
from tests.unit.fake_node import FakeNode, plan, server
from tests.unit.watching import PATIENCE, eventually, running

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

    async def of_node(self, leave_out: object) -> object:
        del leave_out
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
        async with asyncio.timeout(PATIENCE):
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
    async with asyncio.timeout(PATIENCE):
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


@pytest.mark.parametrize("number", EVENTS["socket.__new__"], ids=errno.errorcode.get)
async def test_a_link_is_not_taken_for_missing_because_no_socket_can_be_had(number: int) -> None:
    openings = Openings(EVENTS["socket.__new__"].index(number), only={"socket.__new__": ""})
    with openings.failing():
        with pytest.raises(KernelError) as refused:
            interface_index("lo")
        assert (exhaustion(refused.value) is not None, refused.value.errno) == (True, number)
        assert interface_index("lo") == socket.if_nametoindex("lo")
        assert interface_index("no-such-link") is None
        assert interface_index("a-name-that-is-too-long-for-a-link") is None


async def test_dns_servers_stay_protected_while_the_resolvers_files_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 192.168.9.53\n")
    monkeypatch.setattr(watcher_of_the_node, "LOOK_EVERY", 0.001)
    told: list[NodeInterfaces] = []
    looks = 0

    def look() -> frozenset[str]:
        nonlocal looks
        looks += 1
        if looks in {2, 3}:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return dns_servers([tmp_path / "resolv.conf"])

    watcher = NodeWatcher("d0", told.append, monitor=Monitor(), addresses=Source(errno.EMFILE), resolver=look)
    monkeypatch.setattr(watcher_of_the_node, "SHORTEST_PAUSE", 0.0)
    async with running(watcher.run()):
        await eventually(lambda: looks > 4)
    assert {it.dns_servers for it in told} == {frozenset({"192.168.9.53"})}


@pytest.mark.parametrize("number", range(4))
def test_a_resolvers_file_that_cannot_be_opened_is_no_file_without_servers(number: int, tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 192.168.9.53\n")
    with Openings(number, only={"open": "resolv.conf"}).failing():
        with pytest.raises(OSError, match=r"\[Errno") as refused:
            dns_servers([tmp_path / "resolv.conf"])
        assert exhaustion(refused.value)
        assert dns_servers([tmp_path / "resolv.conf", tmp_path / "none"]) == {"192.168.9.53"}


async def test_built_in_modules_are_not_taken_for_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = tmp_path / os.uname().release
    release.mkdir()
    (release / "modules.builtin").write_text("kernel/net/netfilter/ipvs/ip_vs.ko\n")
    monkeypatch.setattr(modules, "BUILTIN", tmp_path)
    monkeypatch.setattr(modules, "MODULES", tmp_path)
    with Openings(0, only={"open": "modules.builtin"}).failing():
        with pytest.raises(OSError, match="Too many open files"):
            await modules.load(["ip_vs"])
        assert await modules.load(["ip_vs"]) == []


def test_a_library_that_cannot_be_loaded_now_can_be_loaded_later() -> None:
    words = "libfoo.so: cannot open shared object file: Too many open files"
    assert exhaustion(ImportError(words)) == exhaustion(OSError(errno.EMFILE, ""))
    assert exhaustion(ImportError("No module named 'foo'")) is None


async def test_a_request_that_cannot_be_answered_for_want_of_a_resource_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[Exception] = [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), MemoryError()]

    async def answer(_: Request) -> Response:
        if left:
            raise left.pop()
        return text(HTTPStatus.OK, "fine")

    server = BriefHttpServer(answer)
    listening = await server.listen("127.0.0.1", 0)
    answers = []
    with capture_logs() as logs:
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answers.append((await reader.read()).split()[1])
            writer.close()
    assert answers == [b"503", b"503", b"200"]
    assert [line["event"] for line in logs] == ["resources.exhausted"]
    await server.close([listening])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE, errno.EIO])
def test_a_log_that_cannot_be_written_ends_nothing(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(written, "write", failing(1, number, written.write))
    monkeypatch.setattr(sys, "stderr", written)
    lines = logs_of_kroute._Lines()
    lines.msg("lost")
    lines.msg("written")
    assert written.getvalue() == "written\n"
