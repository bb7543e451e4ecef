"""`kroute explain` takes a Service by its name, or an address, and explains each address and port that is meant."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from kroute.cli import explain as command
from kroute.cli.parameters.arguments import AddressPorts, ServicePorts, parse_target
from kroute.cli.terminal.output import NO_AGENT, UNKNOWN
from kroute.inspect import agent_socket, planned_state
from kroute.inspect.explain import Explanation
from kroute.inspect.snapshot import QUESTION, of_agent
from kroute.model.objects import ObjectKey, Service
from kroute.model.plan import Protocol, ServicePlan, VirtualServer, VirtualServerKey
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


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10.96.0.10", AddressPorts("10.96.0.10")),
        ("10.96.0.10/udp", AddressPorts("10.96.0.10", Protocol.UDP)),
        ("fd00:0::10", AddressPorts("fd00::10")),
        ("[fd00::10]", AddressPorts("fd00::10")),
        ("[fd00::10]/SCTP", AddressPorts("fd00::10", Protocol.SCTP)),
        ("[fd00::10]:80", VirtualServerKey(Protocol.TCP, "fd00::10", 80)),
    ],
)
def test_an_address_without_a_port_means_all_its_ports(text: str, meant: object) -> None:
    assert parse_target(text) == meant


async def test_all_ports_of_an_address(
    explained: list[VirtualServerKey], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def answer(_about: str) -> bytes:
        return msgspec.json.encode(of_agent([plan], {}))

    keys = (("TCP", "10.96.0.10", 80), ("UDP", "10.96.0.10", 53), ("TCP", "fd00::10", 80))
    servers = (VirtualServer(VirtualServerKey(Protocol[it[0]], *it[1:]), "rr", 0, None, ()) for it in keys)
    plan = ServicePlan(ObjectKey("default", "web"), virtual_servers=tuple(servers))
    async with agent_socket.serve(tmp_path, {QUESTION: answer}):
        for address, code in (("10.96.0.10", 0), ("10.96.0.10/udp", 0), ("10.96.0.9", UNKNOWN), ("fd00::9", UNKNOWN)):
            arguments = ("explain", address, "--state-dir", tmp_path, "-o", "name")
            assert await asyncio.to_thread(exit_code, *arguments) == code
    output = capfd.readouterr()
    assert output.out.splitlines() == ["10.96.0.10:80/TCP", "10.96.0.10:53/UDP", "10.96.0.10:53/UDP"]
    assert "not served on this node: 10.96.0.9;" in output.err
    assert "an IPv6 address with a port is written [ADDRESS]:PORT" in output.err


async def test_what_is_not_there_is_said(
    explained: list[VirtualServerKey], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await ask(tmp_path, None, "default/nobody") == UNKNOWN
    assert "not served on this node: Service default/nobody;" in capfd.readouterr().err
    assert await ask(tmp_path, service(), "default/web:https") == UNKNOWN
    assert "not served on this node: port https of Service default/web;" in capfd.readouterr().err
    assert explained == []


def test_without_an_agent_nobody_knows_services(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code("explain", "default/web", "--state-dir", tmp_path) == NO_AGENT
    assert "only the agent knows Services: write ADDRESS:PORT" in capfd.readouterr().err
