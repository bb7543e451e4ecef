"""`kroute show` prints the planned and the kernel's state side by side."""

import io
from contextlib import redirect_stdout
from pathlib import Path

import msgspec
import pytest

from kroute.cli.show import table as show_table
from kroute.cli.terminal.screen import Screen
from kroute.firewall.sets import SetFill
from kroute.inspect import agent_socket, snapshot
from kroute.inspect.snapshot import ProblemRow
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.ipvs.objects import RealServerState, VirtualServerOptions, VirtualServerState
from kroute.model.objects import ObjectKey
from kroute.model.plan import (
    NodePlan,
    Persistence,
    Problem,
    Protocol,
    RealServer,
    ServicePlan,
    VirtualServer,
    VirtualServerKey,
)
from tests.builders import facts
from tests.unit.command_line import exit_code

KEY = VirtualServerKey(Protocol.TCP, "fd00::10", 80)
PLAN = ServicePlan(
    ObjectKey("default", "web"),
    virtual_servers=(
        VirtualServer(
            KEY, "mh", 0x10, Persistence(600, 64), (RealServer("fd00::1", 8080), RealServer("fd00::2", 8080))
        ),
    ),
    problems=(Problem("InvalidAnnotation", "annotation x=y", "y is not allowed [here]"),),
)
TABLE = {
    KEY: VirtualServerState(
        VirtualServerOptions("mh", 0x10, 600, 64),
        {("fd00::1", 8080): RealServerState(1, active=3, inactive=4), ("fd00::3", 8080): RealServerState(0, active=1)},
    )
}


def printed(shown: snapshot.Snapshot, *, is_wide: bool = False) -> str:
    screen = io.StringIO()
    with redirect_stdout(screen):
        show_table.print_snapshot(shown, Screen(is_wide=is_wide))
    return screen.getvalue()


def test_the_agent_shows_each_real_server_with_its_state() -> None:
    [row] = snapshot.of_agent([PLAN], TABLE).virtual_servers
    assert (row.service, row.scheduler, row.flags) == ("default/web", "mh", ("mh-port",))
    assert (row.persistence_timeout, row.persistence_prefix) == (600, 64)
    assert [(each.address, each.weight, each.active, each.inactive, each.state) for each in row.real_servers] == [
        ("fd00::1", 1, 3, 4, "serving"),
        ("fd00::3", 0, 1, 0, "draining"),
        ("fd00::2", 1, 0, 0, "missing"),
    ]


def test_a_virtual_server_that_the_kernel_lacks_is_shown_as_missing() -> None:
    [row] = snapshot.of_agent([PLAN], {}).virtual_servers
    assert row.state == "missing"
    assert {each.state for each in row.real_servers} == {"missing"}


def test_a_virtual_server_that_nothing_serves_is_shown_as_refusing_also_while_the_last_real_server_drains() -> None:
    nothing = ServicePlan(ObjectKey("default", "idle"), virtual_servers=(VirtualServer(KEY, "rr", 0, None, ()),))
    [row] = snapshot.of_agent([nothing], {}).virtual_servers
    assert (row.state, row.real_servers) == ("refusing", [])
    assert "refusing" in printed(snapshot.of_agent([nothing], {}))
    drained = {KEY: VirtualServerState(VirtualServerOptions("rr"), {("fd00::1", 8080): RealServerState(0, active=1)})}
    [row] = snapshot.of_agent([nothing], drained).virtual_servers
    assert (row.state, [each.state for each in row.real_servers]) == ("refusing", ["draining"])


def test_the_nodes_own_plan_is_no_service() -> None:
    own = NodePlan(facts(), problems=(Problem("NoZone", "node", "the zone is not known"),))
    shown = snapshot.of_agent([own], {})
    assert (shown.virtual_servers, shown.problems) == ([], [ProblemRow("", "NoZone", "the zone is not known")])
    assert "this node: NoZone: the zone is not known" in printed(shown)


def test_the_table_shows_addresses_of_both_families_and_the_problems() -> None:
    text = printed(snapshot.of_agent([PLAN], TABLE))
    assert "TCP [fd00::10]:80" in text
    assert "[fd00::3]:8080" in text
    assert "mh mh-port" in text
    assert "600s /64" in text
    assert "y is not allowed [here]" in text


def test_sets_that_are_not_empty_are_shown_with_what_they_can_hold() -> None:
    fills = [SetFill("KROUTE-VIP", 262_144, 524_288, 2_097_152), SetFill("KROUTE-HAIRPIN", 0, 262_144, 2_097_152)]
    shown = snapshot.of_agent([PLAN], TABLE, fills)
    assert ["KROUTE-VIP", "262144", "524288", "2097152"] in [line.split() for line in printed(shown).splitlines()]
    assert "HAIRPIN" not in printed(shown)
    assert msgspec.json.decode(msgspec.json.encode(shown))["sets"] == [
        {"set": "KROUTE-VIP", "entries": 262_144, "capacity": 524_288, "limit": 2_097_152},
        {"set": "KROUTE-HAIRPIN", "entries": 0, "capacity": 262_144, "limit": 2_097_152},
    ]


def test_a_virtual_server_without_real_servers_has_a_line() -> None:
    text = printed(snapshot.of_kernel({(6, "10.0.0.1", 80): VirtualServerState(VirtualServerOptions("rr"), {})}))
    assert "TCP 10.0.0.1:80" in text


def test_without_an_agent_the_kernel_is_shown_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class KernelOnly(Ipvs):
        async def open(self) -> None: ...
        async def close(self) -> None: ...
        async def read(self) -> dict[tuple[int, str, int], VirtualServerState]:
            return dict(TABLE)

    monkeypatch.setattr(show_table, "Ipvs", KernelOnly)
    assert exit_code("show", "-o", "json", "--state-dir", tmp_path) == 0
    output = capfd.readouterr()
    assert msgspec.json.decode(output.out)["source"] == "kernel"
    assert exit_code("show", "--state-dir", tmp_path) == 0
    output = capfd.readouterr()
    assert "No agent answers" in output.err
    assert "TCP [fd00::10]:80" in output.out


async def test_the_agents_answer_survives_its_socket(tmp_path: Path) -> None:
    shown = snapshot.of_agent([PLAN], TABLE)

    async def answer(about: str) -> bytes:
        return msgspec.json.encode(shown)

    async with agent_socket.serve(tmp_path, {snapshot.QUESTION: answer}):
        received = await agent_socket.ask(tmp_path, snapshot.QUESTION)
    assert msgspec.json.decode(received, type=snapshot.Snapshot) == shown
