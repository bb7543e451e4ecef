"""The bench beside the other proxies: its workload, what it reads of kube-proxy's table, and its report."""

import subprocess
from collections import Counter
from types import SimpleNamespace

import pytest

from bench.scale import looks, report
from bench.scale.proxies import PROXIES
from bench.workload import Workload

TABLE = """\
table ip kube-proxy {
	chain service-747KVBFX-team-1/service-1/tcp/http {
		ip protocol tcp dnat ip to numgen random mod 2 map { 0 : 10.128.0.2 . 8080, 1 : 10.128.0.3 . 8080 }
	}

	chain service-endpoints-check {
		ip daddr . meta l4proto . th dport vmap @no-endpoint-services
	}

	chain service-ABCDEFGH-team-2/service-2/tcp/http {
		ip protocol tcp dnat ip to numgen random mod 1 map { 0 : 10.128.0.9 . 8080 }
	}
}
"""
"""Chains of kube-proxy 1.36.2, as nft lists them."""


def a_column(**others: object) -> dict[str, object]:
    figures = {"start": 1.2, "start_cpu": 0.9, "rss_started": 40 << 20, "change_p50": 0.006, "change_max": 0.02}
    churn = {
        "churn_changes": 6000,
        "churn": 60.2,
        "churn_cpu": 0.25,
        "idle_cpu": 0.01,
        "complete_after": 0.1,
        "missed": 0,
    }
    sizes = {"rss_first": 41 << 20, "rss_last": 42 << 20, "rss_peak": 43 << 20}
    return {**figures, **churn, **sizes, "away": 9.5, "plan_differs": "", "lab": "a lab", "python": "3", **others}


def a_result(**proxies: object) -> dict[str, object]:
    run = {"when": "now", "commit": "c", "cores": 2, "load_before": 0.1, "load_after": 0.2}
    return {**run, "services": 5000, "endpoints": 10, "nodes": 100, "proxies": proxies}


def test_pods_are_shared_out_to_all_nodes_that_there_are() -> None:
    workload = Workload(services=20, endpoints=5, nodes=4)
    objects = list(workload.objects())
    nodes = {it["metadata"]["name"] for it in objects if it["kind"] == "Node"}
    pods = Counter(end["nodeName"] for it in objects if it["kind"] == "EndpointSlice" for end in it["endpoints"])
    assert pods == dict.fromkeys(nodes, 25)
    assert len(workload.local_pods()) == 25


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        ({}, 0),
        ({"team-1/service-1": ["10.128.0.2", "10.128.0.4"]}, 1),
        ({"team-2/service-2": []}, 1),
        ({"team-3/service-3": ["10.128.0.7"]}, 1),
    ],
    ids=["equal", "an endpoint missed", "one too many", "a Service missed"],
)
def test_what_kube_proxy_has_missed_is_read_from_its_table(
    changed: dict[str, list[str]], differing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0, stdout=TABLE))
    expected = {"team-1/service-1": ["10.128.0.2", "10.128.0.3"], "team-2/service-2": ["10.128.0.9"], **changed}
    assert looks.nft_differences(expected) == differing


def test_the_report_has_a_column_for_each_proxy_that_was_measured() -> None:
    text = report.markdown(a_result(kroute=a_column(), ipvs=a_column(away=None, missed=7)))
    head = next(line for line in text.splitlines() if line.startswith("| 5,000 Services"))
    assert head == f"| 5,000 Services x 10, 100 Nodes | {PROXIES['kroute'].title} | {PROXIES['ipvs'].title} |"
    assert "| Services that missed a change | 0 | 7 |" in text
    assert "| CPU in churn | 25.0 % of a core | 25.0 % of a core |" in text
    assert "away for 9.5 s. After it `kroute plan` finds nothing to change" in text


def test_a_plan_that_differs_from_the_kernel_after_the_churn_is_not_hidden() -> None:
    text = report.markdown(a_result(kroute=a_column(plan_differs="add a real server")))
    assert "finds something to change" in text
