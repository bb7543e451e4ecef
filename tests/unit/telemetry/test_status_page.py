"""One Service in full on the status page, and what the page says when it cannot know."""

import json
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest

from kroute.kernel.ipvs.objects import RealServerState, Traffic, VirtualServerOptions, VirtualServerState
from kroute.model.objects import Applied
from kroute.telemetry import status_page
from tests.builders import LISTED, endpoint, endpoint_slice, node, service
from tests.unit.load_balancer import Answer, ask, ask_soon
from tests.unit.observed import Observed

WEB = (6, "10.96.0.10", 80)


@pytest.fixture
async def agent() -> AsyncIterator[Observed]:
    observed = Observed()
    slices = endpoint_slice("web-1", endpoint("10.1.0.1"), endpoint("10.1.0.2", ready=False))
    observed.catalog.take([Applied(node()), Applied(service("web")), Applied(slices), *LISTED])
    observed.broadcaster.publish(observed.catalog.plan_marked())
    reals = {("10.1.0.1", 8080): RealServerState(1, 3, 4), ("10.1.0.9", 8080): RealServerState(0, 1, 0)}
    observed.kernel.table[WEB] = VirtualServerState(VirtualServerOptions("rr"), reals)
    observed.kernel.passed[WEB] = Traffic(1, 2, 3, 4, 5)
    async with observed.running():
        await ask_soon(observed.metrics_port)
        yield observed


async def asked(agent: Observed, name: str) -> Answer:
    return await ask(agent.metrics_port, f"/service.json?name={quote(name)}", host_header="localhost")


async def test_one_service_has_its_addresses_real_servers_traffic_and_reasons(agent: Observed) -> None:
    shown = json.loads((await asked(agent, "default/web")).body)
    assert [address for address, _ in shown["vips"]] == ["10.96.0.10"]
    [server] = shown["virtualServers"]
    assert (server["state"], list(server["traffic"].values())) == ("serving", [1, 2, 3, 4, 5])
    states = {(it["address"], it["state"], it["active"]) for it in server["realServers"]}
    assert states == {("10.1.0.1", "serving", 3), ("10.1.0.9", "draining", 1)}
    [frontend] = shown["frontends"]
    assert {(it["address"], it["serves"], it["reason"]) for it in frontend["endpoints"]} == {
        ("10.1.0.1", True, "ready"),
        ("10.1.0.2", False, "not ready"),
    }


@pytest.mark.parametrize("name", ["default/none", "", "web", "/", "default/web/x", "x" * 5000, "../../etc/passwd"])
async def test_a_service_that_does_not_exist_is_not_found(agent: Observed, name: str) -> None:
    assert (await asked(agent, name)).status == 404


async def test_without_the_kernel_a_service_and_the_page_say_so(agent: Observed) -> None:
    agent.kernel.refuses = True
    shown = json.loads((await asked(agent, "default/web")).body)
    assert "load ip_vs" in shown["unreadable"]
    assert shown["virtualServers"][0]["state"] == "missing"
    page = json.loads((await ask(agent.metrics_port, "/status.json", host_header="localhost")).body)
    assert page["services"]["rows"][0]["state"] == "missing"
    assert page["rates"] is None
    assert "KernelUnreadable" in [it["reason"] for it in page["status"]["problems"]]


async def test_a_service_of_many_endpoints_is_bounded(agent: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_page, "MOST_ENDPOINTS", 1)
    shown = json.loads((await asked(agent, "default/web")).body)
    assert (len(shown["frontends"][0]["endpoints"]), shown["omitted"]) == (1, 1)
