"""The bench of the data path: its report, and the objects that it serves."""

from typing import Any
from xml.etree import ElementTree as ET

from bench.datapath import report
from bench.datapath.ways import ENDPOINTS, FLOORS, WAYS, Measured
from tests.lab.places import PROJECT

RESULTS = PROJECT / "bench" / "results"


def calls(connect: float, request: float = 2e-5) -> dict[str, Any]:
    """The figures of a way: microseconds of processor time for a connection, seconds for a request."""
    return {
        "first": {"p50": 0.0002, "p99": 0.0011},
        "connect": {"cpu": connect / 1e6, "seconds": 0.0005},
        "request": {"cpu": request, "seconds": 0.0001},
    }


def a_run(proxy: str, services: int, connect: float, floor: float = 100) -> dict[str, Any]:
    names = FLOORS if proxy == "none" else WAYS
    ways = {name: calls(floor if name in FLOORS else connect) for name in names}
    return {"proxy": proxy, "services": services, "start": 1.0, "ways": ways}


def a_result(*runs: dict[str, Any]) -> dict[str, Any]:
    where = {"when": "now", "commit": "c", "lab": "a lab", "cores": 2, "load_before": 0.1, "load_after": 0.2}
    return {**where, "rounds": 5, "connections": 400, "requests": 1000, "runs": list(runs)}


FLOOR = a_run("none", 10, 100)


def row(text: str, title: str) -> str:
    """The first row of this title."""
    return next(line for line in text.splitlines() if line.startswith(f"| {title} |"))


def test_a_cost_is_that_of_the_whole_call_beside_one_to_a_pods_own_address() -> None:
    runs = a_run("kroute-nftables", 10, 130), a_run("kroute-nftables", 1000, 151, floor=120)
    text = report.markdown(a_result(FLOOR, *runs), RESULTS)
    assert row(text, WAYS["cluster-ip"].title) == f"| {WAYS['cluster-ip'].title} |  | 130 / 151 |  |"
    assert row(text, WAYS["pod"].title) == f"| {WAYS['pod'].title} | 100 | 100 / 120 |  |"


def test_the_best_of_kroute_is_compared_with_the_best_of_kube_proxy() -> None:
    ours = a_run("kroute-nftables", 10, 140), a_run("kroute-iptables", 10, 150)
    others = a_run("kube-proxy-ipvs", 10, 145), a_run("kube-proxy-iptables", 10, 170)
    text = report.markdown(a_result(FLOOR, *ours, *others), RESULTS)
    assert row(text, WAYS["own"].title) == f"| {WAYS['own'].title} |  | 140 | 150 | 145 | 170 | -5 |"


def test_a_proxy_that_did_not_get_there_is_named_and_not_drawn() -> None:
    late = {"proxy": "kube-proxy-iptables", "services": 1000, "start": None, "why": "TimeoutError"}
    known = [a_run(proxy, size, 120) for size in (10, 1000) for proxy in ("kroute-nftables", "kube-proxy-ipvs")]
    result = a_result(FLOOR, *known, a_run("kube-proxy-iptables", 10, 130), late)
    text = report.markdown(result, RESULTS)
    assert "Did not get there in time: kube-proxy, iptables at 1,000 Services." in text
    assert row(text, WAYS["affinity"].title).endswith("| 130 / - | +0 |")
    [(name, chart)] = report.charts(result).items()
    assert f"![datapath](../../bench/results/{name})" in text
    ET.fromstring(chart)


def test_figures_of_one_size_have_no_chart() -> None:
    assert report.charts(a_result(FLOOR, a_run("kroute-nftables", 10, 120))) == {}


def test_each_way_leads_to_a_port_that_a_service_has() -> None:
    services = {it["metadata"]["name"]: it for it in Measured(3, 1).objects() if it["kind"] == "Service"}
    ports = set()
    for item in services.values():
        ingress = item["status"]["loadBalancer"].get("ingress", ())
        ports |= {(ip, 80) for ip in [item["spec"]["clusterIP"], *(it["ip"] for it in ingress)]}
        ports |= {("192.168.250.2", port["nodePort"]) for port in item["spec"]["ports"] if "nodePort" in port}
    for way in WAYS.values():
        assert (way.address, way.port) in ports or way.address in ENDPOINTS
