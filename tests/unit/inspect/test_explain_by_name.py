"""`kroute explain` takes a Service by its name, and explains each address and port that is meant."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from kroute.cli import explain as command
from kroute.cli.parameters.arguments import ServicePorts, parse_target
from kroute.inspect import agent_socket, planned_state
from kroute.inspect.explain import Explanation
from kroute.model.objects import Service
from kroute.model.plan import VirtualServerKey
from kroute.planning.endpoint_reasons import FrontendView, ServiceView
from tests.builders import facts, service
from tests.unit.command_line import exit_code

FRONTENDS = [
    FrontendView("TCP", "10.96.0.10", 80, "http", "clusterIP", "Cluster", "", []),
    FrontendView("TCP", "fd00::10", 80, "http", "clusterIP", "Cluster", "", []),
    FrontendView("UDP", "10.96.0.10", 53, "dns", "clusterIP", "Cluster", "", []),
    FrontendView("TCP", "192.168.1.5", 30080, "http", "nodePort", "Cluster", "", []),
]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("default/web", [0, 1, 2, 3]),
        ("default/web:http", [0, 1, 3]),
        ("default/web:30080", [3]),
        ("web.default", [0, 1, 2]),
        ("web.default:http", [0, 1]),
        ("web.default:53/udp", [2]),
        ("web.default:53/tcp", []),
        ("web.default:30080", []),
    ],
)
def test_which_addresses_and_ports_are_meant(text: str, meant: list[int]) -> None:
    target = parse_target(text)
    assert isinstance(target, ServicePorts)
    assert [number for number, it in enumerate(FRONTENDS) if command.is_meant(it, target)] == meant


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch) -> list[VirtualServerKey]:
    """The addresses and ports that are explained; the kernel is not asked."""
    asked: list[VirtualServerKey] = []

    async def explain(_settings: object, key: VirtualServerKey, *_: object) -> Explanation:
        asked.append(key)
        name = key.protocol.name
        return Explanation(name, key.address, key.port, "agent", "default/web", None, True, None, "rr", [], [], [], [])

    monkeypatch.setattr(command, "explain_packet", explain)
    return asked


async def ask(state_dir: Path, view: Service | None, *arguments: str) -> int:
    """Run the command beside an agent that knows the frontends of one Service, or no Service."""

    async def answer(_about: str) -> bytes:
        if view is None:
            return b"null"
        found = planned_state.PlannedState(facts(), "default/web", ServiceView(view, FRONTENDS), [], [], [], [])
        return msgspec.json.encode(found)

    async with agent_socket.serve(state_dir, {planned_state.SERVICE: answer}):
        return await asyncio.to_thread(exit_code, "explain", *arguments, "--state-dir", state_dir)


async def test_a_service_by_its_name(
    explained: list[VirtualServerKey], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await ask(tmp_path, service(), "web.default:http", "-o", "name") == 0
    assert capfd.readouterr().out.splitlines() == ["10.96.0.10:80/TCP", "[fd00::10]:80/TCP"]
    assert [str(it) for it in explained] == ["TCP 10.96.0.10:80", "TCP [fd00::10]:80"]


async def test_what_is_not_there_is_said(
    explained: list[VirtualServerKey], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await ask(tmp_path, None, "default/nobody") == command.UNKNOWN
    assert "Service default/nobody is nothing that kroute serves here" in capfd.readouterr().err
    assert await ask(tmp_path, service(), "default/web:https") == command.UNKNOWN
    assert "port https of Service default/web is nothing that kroute serves" in capfd.readouterr().err
    assert explained == []


def test_without_an_agent_nobody_knows_services(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code("explain", "default/web", "--state-dir", tmp_path) == 1
    assert "only the agent knows of Services: write ADDRESS:PORT" in capfd.readouterr().err
