"""A running proxy is recognised by its process or its ports; a kube-router that only routes does not count."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kroute.checks.known_proxies import OTHER_PROXIES
from kroute.migration import running
from kroute.migration.running import Listener, signs_of_life
from tests.unit.watching import PATIENCE

KUBE_PROXY, KUBE_ROUTER = OTHER_PROXIES["kube-proxy"], OTHER_PROXIES["kube-router"]


def start(processes: Path, pid: int, *argv: str) -> None:
    directory = processes / str(pid)
    directory.mkdir()
    (directory / "cmdline").write_bytes("\0".join([*argv, ""]).encode())


@asynccontextmanager
async def answering(monkeypatch: pytest.MonkeyPatch, proxy: str, status: str) -> AsyncIterator[None]:
    """Run a server on the one port by which the proxy is recognised, which says nothing if the status is empty."""
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if status:
            writer.write(f"HTTP/1.0 {status}\r\n\r\n".encode())
            await writer.drain()
        else:
            await over.wait()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setitem(running.LISTENERS, proxy, (Listener(port, "/healthz", "health port"),))
    monkeypatch.setattr(running, "ANSWERS_WITHIN", PATIENCE if status else 0.05)
    async with server:
        yield
        over.set()


async def test_a_process_of_its_name_is_a_sign(tmp_path: Path) -> None:
    start(tmp_path, 7, "/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf")
    start(tmp_path, 8, "/usr/bin/kube-proxy-exporter")
    start(tmp_path, 9, "grep", "kube-proxy")
    (tmp_path / "self").mkdir()
    assert await signs_of_life(KUBE_PROXY, look_at_ports=False, processes=tmp_path) == ["process 7"]
    assert await signs_of_life(KUBE_ROUTER, look_at_ports=False, processes=tmp_path) == []


async def test_a_kube_router_without_service_proxy_is_none_though_its_port_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path, 7, "/usr/local/bin/kube-router", "--run-router=true", "--run-service-proxy=false")
    async with answering(monkeypatch, "kube-router", "200 OK"):
        assert await signs_of_life(KUBE_ROUTER, look_at_ports=True, processes=tmp_path) == []
        start(tmp_path, 8, "/usr/local/bin/kube-router", "--run-service-proxy=true")
        assert await signs_of_life(KUBE_ROUTER, look_at_ports=False, processes=tmp_path) == ["process 8"]


@pytest.mark.parametrize(
    ("status", "is_sign"),
    [
        ("200 OK", True),
        ("503 Service Unavailable", True),
        ("404 -", False),
        pytest.param("", True, id="no answer in time"),
        pytest.param("2" * 100_000, False, id="a line without end"),
    ],
)
async def test_an_answer_at_its_port_is_a_sign(
    status: str, is_sign: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(monkeypatch, "kube-proxy", status):
        signs = await signs_of_life(KUBE_PROXY, look_at_ports=True, processes=tmp_path)
        assert bool(signs) is is_sign
        assert await signs_of_life(KUBE_PROXY, look_at_ports=False, processes=tmp_path) == []


async def test_nobody_at_the_port_is_no_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setitem(running.LISTENERS, "kube-proxy", (Listener(port, "/healthz", "health port"),))
    assert await signs_of_life(KUBE_PROXY, look_at_ports=True, processes=tmp_path) == []
