"""The agent's answers on its health port and its metrics port. The sockets are real ones, on loopback."""

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from structlog.testing import capture_logs

from kroute import __version__
from kroute.checks.running_proxies import Sign
from kroute.http import fair_listener, server
from kroute.http.fair_listener import Budget
from kroute.model.objects import Applied, Deleted, Node, NodeSpec, ObjectKey, ObjectMeta, Taint
from kroute.settings import ListenAddress
from kroute.telemetry import agent_status, metrics_port, status_page
from kroute.telemetry.shared_answers import SHORTEST
from tests.builders import LISTED, NODE, service
from tests.unit.load_balancer import LOCALHOST, ask, ask_soon, free_ports, say, until
from tests.unit.observed import Observed


@pytest.fixture
async def agent() -> AsyncIterator[Observed]:
    observed = Observed()
    async with observed.running():
        await ask_soon(observed.health_port)
        await ask_soon(observed.metrics_port)
        yield observed


async def probes(agent: Observed) -> dict[str, int]:
    return {path: (await ask(agent.health_port, path)).status for path in ("/healthz", "/livez", "/readyz")}


async def test_a_healthy_agent_answers_as_kube_proxy_does(agent: Observed) -> None:
    answer = await ask(agent.health_port, "/healthz")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    body = json.loads(answer.body)
    assert body.keys() == {"lastUpdated", "currentTime", "nodeEligible", "healthy"}
    assert body["nodeEligible"] is True
    assert body["lastUpdated"] == body["currentTime"]
    assert "nodeEligible" not in json.loads((await ask(agent.health_port, "/livez")).body)


async def test_controllers_that_do_not_work_fail_every_probe_and_say_why(agent: Observed) -> None:
    agent.workers.faults = ["masquerade has failed for 75 s: the lock is held"]
    assert await probes(agent) == {"/healthz": 503, "/livez": 503, "/readyz": 503}
    body = json.loads((await ask(agent.health_port, "/healthz")).body)
    assert body["causes"] == agent.workers.faults
    assert body["lastUpdated"] == "2023-11-14T22:13:20.000000Z"
    assert body["healthy"] is False


async def test_until_the_initial_sync_is_served_the_agent_is_healthy_and_not_ready(agent: Observed) -> None:
    agent.workers.is_live = False
    assert await probes(agent) == {"/healthz": 200, "/livez": 200, "/readyz": 503}


async def test_while_another_proxy_is_at_work_the_agent_is_alive_and_says_why_it_is_not_ready(agent: Observed) -> None:
    agent.workers.is_live = False
    agent.workers.faults = ["no controller has run yet"]
    agent.ownership.waits_for = Sign("kube-proxy", "its metrics port 10249 answers: mode ipvs")
    assert await probes(agent) == {"/healthz": 503, "/livez": 200, "/readyz": 503}
    why = "waiting: kube-proxy is at work on this node (its metrics port 10249 answers: mode ipvs)"
    assert json.loads((await ask(agent.health_port, "/readyz")).body)["causes"] == [why]


def node(*taints: str, deleted: bool = False, name: str = NODE) -> Node:
    metadata = ObjectMeta(name=name, deletion_timestamp="2026-01-01T00:00:00Z" if deleted else None)
    return Node(metadata, NodeSpec(taints=tuple(Taint(key) for key in taints)))


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        pytest.param([Applied(node("node.kubernetes.io/not-ready"))], 200, id="another taint"),
        pytest.param([Applied(node("ToBeDeletedByClusterAutoscaler"))], 503, id="to be removed"),
        pytest.param([Applied(node(deleted=True))], 503, id="being deleted"),
        pytest.param([Applied(node()), Deleted(Node, ObjectKey("", NODE))], 503, id="deleted"),
        pytest.param([Applied(node("ToBeDeletedByClusterAutoscaler", name="other"))], 200, id="another node"),
        pytest.param([Applied(node("ToBeDeletedByClusterAutoscaler")), Applied(node())], 200, id="to stay after all"),
    ],
)
async def test_a_node_that_is_about_to_go_gets_no_more_traffic_and_kroute_lives_on(
    agent: Observed, changes: list[Applied | Deleted], status: int
) -> None:
    agent.changes.read(changes)
    assert await probes(agent) == {"/healthz": status, "/livez": 200, "/readyz": 200}
    assert json.loads((await ask(agent.health_port, "/healthz")).body)["nodeEligible"] is (status == 200)


async def test_the_health_port_answers_probes_and_nothing_else(agent: Observed) -> None:
    for path in ("/", "/metrics", "/status.json", "/healthz/", "/configz", "/flagz", "/statusz"):
        assert (await ask(agent.health_port, path)).status == 404
    assert (await ask(agent.health_port, "/healthz", method="POST")).status == 405
    assert (await ask(agent.health_port, "/healthz", method="HEAD")).status == 200


async def test_the_metrics_port_answers_probes_and_the_proxy_mode_too(agent: Observed) -> None:
    assert (await ask(agent.metrics_port, "/healthz", host_header="localhost")).status == 200
    mode = await ask(agent.metrics_port, "/proxyMode", host_header="localhost")
    assert (mode.status, mode.body) == (200, b"ipvs")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:10249", 200),
        ("127.0.0.1:10249", 200),
        ("[::1]:10249", 200),
        ("127.0.0.1", 200),
        ("evil.example:10249", 403),
        ("localhost.evil.example", 403),
        ("192.168.123.250:10249", 403),
        ("", 403),
    ],
)
async def test_on_loopback_only_those_who_ask_for_loopback_are_answered(
    agent: Observed, host: str, status: int
) -> None:
    for path in ("/", "/metrics", "/status.json", "/service.json?name=a/b", "/configz", "/flagz", "/statusz"):
        assert (await ask(agent.metrics_port, path, host_header=host)).status == (
            status if path[:8] != "/service" or status == 403 else 404
        )


async def test_each_port_refuses_other_hosts_only_if_it_is_on_loopback_itself() -> None:
    """One of both may be open to Prometheus. The other one stays safe from DNS rebinding."""
    for opened in ("own", "metrics"):
        [port] = free_ports()
        agent = Observed(**{f"{opened}_bind_address": ListenAddress("", port)})
        closed = {"own": agent.metrics_port, "metrics": agent.own_port}[opened]
        async with agent.running():
            await ask_soon(port)
            await ask_soon(closed)
            assert (await ask(port, "/metrics", host_header="192.168.123.250:10247")).status == 200
            assert (await ask(closed, "/metrics", host_header="evil.example:10247")).status == 403


async def test_the_page_may_load_and_run_only_what_comes_with_it(agent: Observed) -> None:
    scripts = [(f"/{name}.js", "text/javascript") for name in ("status", "services", "service", "elements")]
    for path, kind in (("/", "text/html"), ("/status.css", "text/css"), *scripts):
        answer = await ask(agent.metrics_port, path, host_header="localhost")
        assert answer.headers["Content-Type"] == f"{kind}; charset=utf-8"
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "http" not in answer.body.decode().replace("http-equiv", "")


async def test_it_is_read_only(agent: Observed) -> None:
    for path in ("/", "/metrics", "/status.json", "/healthz", "/configz", "/flagz", "/statusz"):
        assert (await ask(agent.metrics_port, path, method="POST", host_header="localhost")).status == 405


async def test_a_port_that_somebody_else_has_is_reported_once_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FIRST_RETRY", 0.02)
    agent = Observed()
    with socket.create_server((LOCALHOST, agent.health_port)):
        async with agent.running():
            await ask_soon(agent.metrics_port)
            await until(lambda: len(agent.created) == 2)
            problem = next(event for event in agent.created if event["type"] == "Warning")
            assert problem["reason"] == "PortUnavailable"
            assert problem["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE}
            assert f"sport = :{agent.health_port}" in str(problem["note"])
    async with agent.running():
        assert (await ask_soon(agent.health_port)).status == 404
    assert len([event for event in agent.created if event["type"] == "Warning"]) == 1


async def test_no_port_spends_what_another_may_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "Budget", lambda _: Budget(20, clock=lambda: 7.0))
    monkeypatch.setattr(fair_listener, "owner_of", lambda _: None)
    agent = Observed()
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def answered(port: int) -> bool:
        with suppress(ConnectionError):
            return bool(await say(port, request))
        return False

    async with agent.running():
        for port in (agent.metrics_port, agent.health_port, agent.own_port):
            await ask_soon(port)
            assert [await answered(port) for _ in range(20)].count(True) == 4, "a quarter, with the first"


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/metrics", (metrics_port, "survey")),
        ("/status.json", (status_page, "services_page")),
        ("/service.json?name=default/web", (status_page, "_bounded")),
        ("/answers/status", (agent_status, "plan_problems")),
    ],
)
async def test_all_who_ask_at_once_share_one_computation(
    path: str, part: tuple[ModuleType, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = 0
    real = getattr(*part)

    def counted(*arguments: object) -> object:
        nonlocal computed
        computed += 1
        return real(*arguments)

    monkeypatch.setattr(*part, counted)
    agent = Observed()
    agent.catalog.take([Applied(service()), *LISTED])
    agent.broadcaster.publish(agent.catalog.plan_marked())
    async with agent.running():
        await ask_soon(agent.metrics_port)
        began = time.monotonic()
        answers = await asyncio.gather(*(ask(agent.metrics_port, path, host_header="localhost") for _ in range(60)))
        assert {answer.status for answer in answers} == {200}
        assert computed <= 1 + (time.monotonic() - began) // SHORTEST


async def test_ports_that_are_off_are_not_opened() -> None:
    agent = Observed(healthz_bind_address=None)
    async with agent.running():
        await ask_soon(agent.metrics_port)
        with pytest.raises(ConnectionRefusedError):
            await ask(agent.health_port)


async def test_start_and_take_over_are_events_on_the_node() -> None:
    agent = Observed()
    agent.workers.taken_over = 3
    async with agent.running():
        await until(lambda: len(agent.created) == 2)
    assert [(event["type"], event["reason"]) for event in agent.created] == [
        ("Normal", "Started"),
        ("Normal", "TookOver"),
    ]
    assert all(event["regarding"]["kind"] == "Node" for event in agent.created)
    assert "3 virtual servers" in str(agent.created[1]["note"])


async def test_what_is_no_http_gets_no_line_in_the_log(agent: Observed, caplog: pytest.LogCaptureFixture) -> None:
    assert (await say(agent.metrics_port, b"\x16\x03\x01\x02\x00\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    assert not caplog.records


async def test_a_defect_of_one_part_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Observed()

    def fail() -> bool:
        raise RuntimeError("a defect")

    agent.observation._privileges._may_change_network = fail
    agent.observation._privileges._period = 0
    (await agent.observation.metrics_port()).page.content = fail
    with capture_logs() as logs:
        async with agent.running():
            await ask_soon(agent.metrics_port)
            assert (await ask(agent.metrics_port, "/status.json", host_header="localhost")).status == 500
            assert (await ask(agent.metrics_port, "/metrics", host_header="localhost")).status == 200
    failures = {line["event"] for line in logs if line["log_level"] == "error"}
    assert failures == {"observation.failed", "request.failed"}


class TestDebuggingPages:
    """The pages that every Kubernetes component has, on the metrics port only."""

    async def test_the_configuration_is_json_under_its_name(self, agent: Observed) -> None:
        answer = await ask(agent.metrics_port, "/configz", host_header="localhost")
        assert answer.headers["Content-Type"] == "application/json"
        shown = json.loads(answer.body)["kroute.io"]
        assert (shown["node_name"], shown["metrics_services"]) == (NODE, agent.settings.metrics_services)

    async def test_the_flags_are_sorted_lines_of_text(self, agent: Observed) -> None:
        answer = await ask(agent.metrics_port, "/flagz", host_header="localhost")
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        head, _, lines = answer.body.decode().partition("\n\n")
        assert head.startswith("\nkroute flagz\nWarning: ")
        names = [line.partition("=")[0] for line in lines.splitlines()]
        assert names == sorted(names)
        assert f"node-name={NODE}" in lines.splitlines()

    async def test_the_status_says_what_runs_and_for_how_long(self, agent: Observed) -> None:
        answer = await ask(agent.metrics_port, "/statusz", host_header="localhost")
        rows = dict(line.split(": ", 1) for line in answer.body.decode().partition("\n\n")[2].splitlines())
        assert rows["Binary version"] == __version__
        assert re.fullmatch(r"\d+ hr \d\d min \d\d sec", rows["Up"])
        assert {"Started", "Python version", "Paths"} <= rows.keys()

    @pytest.mark.parametrize(
        ("accept", "status"),
        [
            *(("text/plain", 200), ("text/html, */*;q=0.1", 200), ("", 200)),
            *(("application/json", 406), ("application/json;v=v1beta1;g=config.k8s.io;as=Other", 406), (";;=", 406)),
        ],
    )
    async def test_who_takes_none_of_the_forms_is_told(self, agent: Observed, accept: str, status: int) -> None:
        for path in ("/flagz", "/statusz"):
            headers = {"Accept": accept} if accept else {}
            assert (await ask(agent.metrics_port, path, host_header="localhost", headers=headers)).status == status

    async def test_who_names_the_kind_gets_an_object(self, agent: Observed) -> None:
        objects = {}
        for kind in ("Statusz", "Flagz"):
            accept = f"application/json;v=v1beta1;g=config.k8s.io;as={kind}"
            path = f"/{kind.lower()}"
            answer = await ask(agent.metrics_port, path, host_header="localhost", headers={"Accept": accept})
            assert answer.headers["Content-Type"] == accept
            objects[kind] = json.loads(answer.body)
            assert objects[kind]["kind"] == kind
            assert objects[kind]["apiVersion"] == "config.k8s.io/v1beta1"
            assert objects[kind]["metadata"] == {"name": "kroute"}
        assert objects["Flagz"]["flags"]["node-name"] == NODE
        assert objects["Statusz"]["binaryVersion"] == __version__
        assert objects["Statusz"]["uptimeSeconds"] >= 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", objects["Statusz"]["startTime"])

    @pytest.mark.parametrize("page", ["/configz", "/flagz"])
    async def test_no_secret_is_shown(self, page: str, tmp_path: Path) -> None:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text("users: [{user: {token: SECRET}}]")
        observed = Observed(kubeconfig=kubeconfig, master=("https://admin:SECRET@192.0.2.1:6443",))
        async with observed.running():
            await ask_soon(observed.metrics_port)
            body = (await ask(observed.metrics_port, page, host_header="localhost")).body.decode()
        assert "SECRET" not in body
        assert str(kubeconfig) in body
        assert "https://192.0.2.1:6443" in body
