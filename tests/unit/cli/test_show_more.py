"""`kroute show` beyond the table of virtual servers: all Services, one Service in full, and rates."""

import asyncio
import io
from contextlib import redirect_stdout
from pathlib import Path

import msgspec
import pytest
import yaml

from kroute.cli.main import load
from kroute.cli.show import live
from kroute.cli.show import service as show_service
from kroute.cli.show import table as show_table
from kroute.cli.show.service import ConnectionView, EntryView, ServiceReport, VipView
from kroute.cli.terminal import formats
from kroute.cli.terminal.screen import Screen, number, size
from kroute.inspect import agent_socket, figures, snapshot
from kroute.inspect.figures import ServiceRow
from kroute.inspect.snapshot import ProblemRow, Snapshot, TrafficCounts
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.ipvs.connections import Connection, read_connections
from kroute.kernel.ipvs.objects import RealServerState, Traffic, VirtualServerOptions, VirtualServerState
from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem, Protocol, RealServer, ServicePlan, VirtualServer, VirtualServerKey
from kroute.planning.endpoint_reasons import EndpointView, FrontendView
from tests.builders import service
from tests.unit.command_line import exit_code

WEB, DNS = VirtualServerKey(Protocol.TCP, "10.96.0.10", 80), VirtualServerKey(Protocol.UDP, "fd00::10", 53)
PLANS = [
    ServicePlan(
        ObjectKey("default", "web"),
        virtual_servers=(
            VirtualServer(WEB, "rr", 0, None, (RealServer("10.244.1.1", 80), RealServer("10.244.1.2", 80))),
        ),
    ),
    ServicePlan(ObjectKey("kube-system", "dns"), virtual_servers=(VirtualServer(DNS, "rr", 0, None, ()),)),
    ServicePlan(ObjectKey("default", "odd"), problems=(Problem("InvalidPort", "port 0", "port 0 is not served"),)),
]
TABLE = {
    WEB: VirtualServerState(
        VirtualServerOptions("rr"), {(f"10.244.1.{it}", 80): RealServerState(1, active=it, inactive=1) for it in (1, 2)}
    )
}
SHOWN = snapshot.of_agent(PLANS, TABLE)


def test_each_service_has_a_line_with_its_worst_state() -> None:
    assert figures.list_services(SHOWN).items == [
        ServiceRow("default/odd", 0, 0, 0, 0, "serving", ["InvalidPort: port 0 is not served"]),
        ServiceRow("default/web", 1, 2, 3, 2, "serving", []),
        ServiceRow("kube-system/dns", 1, 0, 0, 0, "refusing", []),
    ]
    [web] = [row for row in figures.list_services(snapshot.of_agent(PLANS, {})).items if row.service == "default/web"]
    assert web.state == "missing"


def test_what_is_no_services_has_no_line() -> None:
    assert (
        figures.list_services(Snapshot("agent", [], [ProblemRow("", "NodeNotFound", "there is no Node")])).items == []
    )


def test_wide_has_what_went_through() -> None:
    shown = snapshot.of_agent(PLANS[:1], TABLE)
    shown.virtual_servers[0].traffic = TrafficCounts(12345, 6, 7, 8, 9)
    screen = io.StringIO()
    with redirect_stdout(screen):
        show_table.print_snapshot(shown, Screen(is_wide=True))
    assert "Bytes out" in screen.getvalue()
    assert "12345" in screen.getvalue()


async def test_services_come_from_the_agent_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def answer(about: str) -> bytes:
        return msgspec.json.encode(SHOWN)

    async with agent_socket.serve(tmp_path, {snapshot.QUESTION: answer}):
        assert await show_table.ask_or_read(tmp_path) == SHOWN


def test_without_an_agent_services_are_not_known(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code("show", "services", "--state-dir", tmp_path) == 6
    assert exit_code("show", "service", "default/web", "--state-dir", tmp_path) == 6
    assert capfd.readouterr().err.count("only the agent knows Services") == 2


def test_yaml_says_what_json_says(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    formats.show(SHOWN, "yaml", print)
    as_yaml = yaml.safe_load(capfdbinary.readouterr().out)
    formats.show(SHOWN, "json", print)
    assert as_yaml == msgspec.json.decode(capfdbinary.readouterr().out)


# Rates


def reading(seconds: float, **traffic: Traffic) -> live.Sample:
    return live.Sample(seconds, SHOWN, {WEB: traffic["web"]} if traffic else {})


def test_rates_are_of_a_second_and_the_busiest_comes_first() -> None:
    before = reading(10.0, web=Traffic(100, 1000, 2000, 50_000, 60_000))
    web, dns = live.rates(before, reading(12.0, web=Traffic(110, 1100, 2300, 51_000, 62_000))).items
    assert (web.service, web.connections, web.packets, web.bytes_in, web.bytes_out) == (
        "default/web", 5.0, 200.0, 500.0, 1000.0,
    )  # fmt: skip
    assert (web.real_servers, web.active, web.inactive) == (2, 3, 2)
    assert (dns.service, dns.packets) == ("kube-system/dns", 0.0)


def test_a_virtual_server_that_is_new_or_was_made_again_began_at_nothing() -> None:
    for before in (reading(10.0), reading(10.0, web=Traffic(100, 1000, 0, 0, 0))):
        web, _ = live.rates(before, reading(11.0, web=Traffic(3, 30, 0, 0, 0))).items
        assert (web.connections, web.packets) == (3.0, 30.0)


def test_the_order_of_rates_is_chosen() -> None:
    choices = next(it for it in load("show").params if it.name == "sort_by").type
    assert set(choices.choices) == set(live.ORDERS)  # type: ignore[attr-defined]
    before, after = reading(10.0, web=Traffic(0, 0, 0, 0, 0)), reading(11.0, web=Traffic(1, 1, 1, 1, 1))
    after.traffic = {**after.traffic, DNS: Traffic(9, 0, 0, 9, 9)}
    first = {order: live.rates(before, after, order).items[0].service for order in live.ORDERS}
    assert first == {
        "packets": "default/web",
        "connections": "kube-system/dns",
        "bytes": "kube-system/dns",
        "active": "default/web",
        "name": "default/web",
    }


def test_what_is_shown_is_chosen_by_service_or_address() -> None:
    def shown(text: str) -> list[str]:
        return [it.service for it in figures.list_services(show_table.narrowed(SHOWN, text)).items]

    assert shown("") == ["default/odd", "default/web", "kube-system/dns"]
    assert shown("Default/") == ["default/odd", "default/web"]
    assert shown("fd00::10") == ["kube-system/dns"]
    assert shown("10.96.0.10:80") == ["default/web"]
    assert shown("nobody") == []


@pytest.mark.parametrize(
    ("value", "a_number", "a_size"),
    [
        (0, "0", "0 B"),
        (0.04, "0.0", "0.0 B"),
        (9.94, "9.9", "9.9 B"),
        (9.96, "10", "10 B"),
        (999.4, "999", "999 B"),
        (1234, "1.2k", "1.2 KiB"),
        (123_456_789, "123M", "118 MiB"),
    ],
)
def test_numbers_have_units_for_people(value: float, a_number: str, a_size: str) -> None:
    assert (number(value), size(value)) == (a_number, a_size)


async def test_a_watch_ends_after_its_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    class Counters(Ipvs):
        async def open(self) -> None: ...
        async def close(self) -> None: ...
        async def traffic(self) -> dict[tuple[int, str, int], Traffic]:
            return {}

    async def answer(_about: str) -> bytes:
        return msgspec.json.encode(SHOWN)

    monkeypatch.setattr(live, "Ipvs", Counters)
    arguments = ("show", "-w", "--count", "2", "--interval", "0.01", "-o", "json", "--filter", "dns")
    async with agent_socket.serve(tmp_path, {snapshot.QUESTION: answer}):
        assert await asyncio.to_thread(exit_code, *arguments, "--state-dir", tmp_path) == 0
    found = [msgspec.json.decode(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [[it["service"] for it in each["items"]] for each in found] == [["kube-system/dns"]] * 2


def test_rates_are_drawn() -> None:
    screen = io.StringIO()
    with redirect_stdout(screen):
        live.print_rates(live.rates(reading(1.0), reading(2.0)), Screen())
    assert "UDP [fd00::10]:53" in screen.getvalue()


# Connections

CONNECTIONS = """\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP 0AF40109 9C40 0A60000A 0050 0AF40101 0050 ESTABLISHED     897
TCP 0AF40109 0000 0A60000A 0050 0AF40102 0050 ASSURED          59
UDP fd00:0000:0000:0000:0000:0000:0000:0001 D431 fd00:0000:0000:0000:0000:0000:0000:0010 0035 \
fd00:0000:0000:0000:0000:0000:0000:0002 14E9 UDP             299
TCP C0000201 9C41 0A60000B 0050 0AF40101 0050 SYN_RECV         57
"""


async def test_connections_are_read_from_the_kernels_file(tmp_path: Path) -> None:
    path = tmp_path / "ip_vs_conn"
    path.write_text(CONNECTIONS)
    assert await read_connections([WEB, DNS], path) == [
        Connection("10.244.1.9", 40000, WEB, ("10.244.1.1", 80), "ESTABLISHED", 897),
        Connection("10.244.1.9", 0, WEB, ("10.244.1.2", 80), "ASSURED", 59),
        Connection("fd00::1", 54321, DNS, ("fd00::2", 5353), "UDP", 299),
    ]


# One Service


def test_a_service_is_printed_from_the_api_to_its_clients() -> None:
    endpoints = [
        EndpointView("10.244.1.1", 80, "node2", True, "ready"),
        EndpointView("10.244.1.3", 80, None, False, "no"),
    ]
    report = ServiceReport(
        service(annotations={"kroute.io/scheduler": "rr"}, kind="NodePort", external_traffic_policy="Local"),
        [FrontendView("TCP", "10.96.0.10", 80, "http", "clusterIP", "Cluster", "", endpoints)],
        snapshot.of_agent(PLANS[:1], TABLE).virtual_servers,
        [VipView("10.96.0.10", False, "192.168.1.5", "10.96.0.10")],
        [EntryView("KROUTE-CLUSTER-IP", "10.96.0.10,TCP,80", True), EntryView("KROUTE-VIP", "10.96.0.10", False)],
        [
            ConnectionView(f"10.244.1.{it}", 40000, "TCP", "10.96.0.10", 80, "10.244.1.1", 80, "ESTABLISHED", 9)
            for it in range(30)
        ],
        ["InvalidPort: port 0 is not served"],
    )
    screen = io.StringIO()
    with redirect_stdout(screen):
        show_service.print_report(report, Screen())
    text = screen.getvalue()
    for line in (
        "Service default/web, NodePort",
        "traffic policy: internal Cluster, external Local",
        "annotation kroute.io/scheduler: rr",
        "clusterIP TCP 10.96.0.10:80 (http), policy Cluster",
        "  in  10.244.1.1:80 on node2: ready",
        "  out 10.244.1.3:80: no",
        "address 10.96.0.10: NOT bound, calls from this node have the source 10.96.0.10, should have 192.168.1.5",
        "set entries: 1 of 2 are there",
        "  missing: 10.96.0.10 in KROUTE-VIP",
        "connections: 30",
        "and 10 more; -o wide, json and yaml have all",
        "InvalidPort: port 0 is not served",
    ):
        assert line in text.splitlines(), line
