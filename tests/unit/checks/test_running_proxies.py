"""A running proxy is recognised by its ports, links or process; a kube-router that only routes does not count."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kroute.checks import policy_enforcers, running_proxies
from kroute.checks.running_proxies import UNKNOWN, Listener, Sign, firewall_at_work, signs_of_life
from tests.unit.watching import PATIENCE

KUBE_PROXY, KUBE_ROUTER = "kube-proxy", "kube-router"
HEALTHY = '{"lastUpdated": "2026-11-23 20:44:01 +0000 UTC","currentTime": "2026-11-23 20:44:02 +0000 UTC"}'


def start(processes: Path, pid: int, *argv: str) -> None:
    directory = processes / str(pid)
    directory.mkdir()
    (directory / "cmdline").write_bytes("\0".join([*argv, ""]).encode())


@asynccontextmanager
async def answering(monkeypatch: pytest.MonkeyPatch, listener: Listener, answer: str) -> AsyncIterator[int]:
    """Run a server on the one port that is looked at, which says nothing if the answer is empty; yields the port."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if answer:
                writer.write(answer.encode())
                await writer.drain()
            else:
                await over.wait()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the port was only looked at
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, family=socket.AF_INET)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setattr(running_proxies, "LISTENERS", (listener._replace(port=port),))
    monkeypatch.setattr(running_proxies, "ANSWERS_WITHIN", PATIENCE if answer else 0.05)
    async with server:
        yield port
        over.set()


def http(status: str, body: str = "") -> str:
    return f"HTTP/1.0 {status}\r\nContent-Type: text/plain\r\n\r\n{body}"


METRICS = Listener(KUBE_PROXY, 0, "metrics port", "/proxyMode")
HEALTH = Listener(KUBE_PROXY, 0, "health port", "/healthz")


@pytest.mark.parametrize(
    ("listener", "answer", "proxy", "why"),
    [
        pytest.param(METRICS, http("200 OK", "ipvs"), KUBE_PROXY, "answers: mode ipvs", id="mode"),
        pytest.param(METRICS, http("200 OK", "hello"), "", "", id="no mode"),
        pytest.param(METRICS, http("404 Not Found", "404 page not found"), "", "", id="no such page"),
        pytest.param(METRICS, "", KUBE_PROXY, "nothing answers there in time", id="stopped"),
        pytest.param(METRICS, "2" * 100_000, "", "", id="a line without end"),
        pytest.param(HEALTH, http("200 OK", HEALTHY), KUBE_PROXY, "answers", id="healthy"),
        pytest.param(HEALTH, http("503 Service Unavailable", HEALTHY), KUBE_PROXY, "answers", id="not healthy"),
        pytest.param(HEALTH, http("200 OK", "ok"), UNKNOWN, "holds the health port", id="another one's health"),
    ],
)
async def test_a_port_says_which_proxy_is_at_work(
    listener: Listener, answer: str, proxy: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(monkeypatch, listener, answer) as port:
        signs = await signs_of_life(processes=tmp_path)
        assert [sign.proxy for sign in signs] == ([proxy] if proxy else [])
        assert all(why in sign.why for sign in signs)
        assert await signs_of_life(ours={port}, processes=tmp_path) == [], "kroute's own port is no sign"


async def test_a_port_alone_is_no_proof_of_a_program_that_may_leave_services_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(monkeypatch, Listener(KUBE_ROUTER, 0, "health port", is_proof=False), http("200 OK")):
        assert [sign.is_proof for sign in await signs_of_life(processes=tmp_path)] == [False]
        start(tmp_path, 7, "/usr/local/bin/kube-router", "--run-router=true", "--run-service-proxy=false")
        assert await signs_of_life(processes=tmp_path) == []
        start(tmp_path, 8, "/usr/local/bin/kube-router", "--run-service-proxy=true")
        assert Sign(KUBE_ROUTER, "process 8") in await signs_of_life(processes=tmp_path)


async def test_a_port_counts_only_beside_the_link_of_its_data_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    felix = Listener("Calico's eBPF data plane", 0, "health port", links=("no-such-link", "lo"))
    monkeypatch.delattr(socket, "if_nameindex")  # there may be thousands
    async with answering(monkeypatch, felix, http("200 OK")):
        assert len(await signs_of_life(processes=tmp_path)) == 1
        monkeypatch.setattr(
            running_proxies, "LISTENERS", (running_proxies.LISTENERS[0]._replace(links=("no-such-link",)),)
        )
        assert await signs_of_life(processes=tmp_path) == []


async def test_a_process_of_its_name_is_a_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_proxies, "LISTENERS", ())
    start(tmp_path, 7, "/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf")
    start(tmp_path, 8, "/usr/bin/kube-proxy-exporter")
    start(tmp_path, 9, "grep", "kube-proxy")
    (tmp_path / "self").mkdir()
    assert await signs_of_life(processes=tmp_path) == [Sign(KUBE_PROXY, "process 7")]


async def test_what_a_port_says_comes_before_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path, 7, "/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf")
    async with answering(monkeypatch, METRICS, http("200 OK", "ipvs")) as port:
        said = [sign.why for sign in await signs_of_life(processes=tmp_path)]
        assert said == [f"its metrics port {port} answers: mode ipvs", "process 7"]


async def test_nobody_at_the_port_is_no_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(running_proxies, "LISTENERS", (METRICS._replace(port=port),))
    assert await signs_of_life(processes=tmp_path) == []


@pytest.mark.parametrize(
    ("listening", "why"),
    [
        (frozenset({20244}), "kube-router's health port 20244 is open"),
        (frozenset({6444}), "K3s' port for its agent 6444 is open"),
        (frozenset({10249}), ""),
        (None, "its ports cannot be looked at"),
    ],
    ids=["kube-router", "K3s", "kroute", "not known"],
)
def test_the_firewall_of_a_kube_router_that_is_not_seen_is_at_work_by_an_open_port(
    listening: frozenset[int] | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_enforcers, "listening_ports", lambda: listening)
    assert firewall_at_work(tmp_path) == why


def test_a_kube_router_that_is_seen_says_whether_it_has_a_firewall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_enforcers, "listening_ports", lambda: frozenset({20244}))
    start(tmp_path, 7, "/usr/local/bin/kube-router", "--run-firewall=false", "--run-service-proxy=false")
    assert firewall_at_work(tmp_path) == ""
    start(tmp_path, 8, "/usr/local/bin/kube-router", "--run-service-proxy=false")
    assert firewall_at_work(tmp_path) == "process 8"
