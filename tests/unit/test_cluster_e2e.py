"""What Kubernetes' own tests say in their JUnit files becomes a section of docs/conformance.md."""

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cluster import e2e
from tests.cluster.e2e_cases import NOT_RUN, why_not_run
from tests.cluster.e2e_report import Outcome, Results, Run, read, results_of, section, section_of, title, with_section
from tests.lab import kubernetes

JUNIT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="Kubernetes e2e suite">
<testcase name="[SynchronizedBeforeSuite]" status="passed"></testcase>
<testcase name="[It] [sig-network] Services should serve a basic endpoint from pods [Conformance]" status="passed"/>
<testcase name="[It] [sig-network] Services should work" status="failed">
<failure message="[FAILED] timed out &lt;after&gt; 2m|0s&#xA;In [It] at: service.go:1"
type="failed">[FAILED] more</failure></testcase>
<testcase name="[It] [sig-network] Services should be in the cloud" status="skipped">
<skipped message="skipped - Only supported for providers [gce]"></skipped></testcase>
<testcase name="[It] [sig-node] Pods of another focus" status="skipped"><skipped message="skipped"></skipped></testcase>
<testcase name="[It] [sig-network] DNS should hang" status="timedout"></testcase>
<testcase name="[It] [sig-network] DNS should be interrupted" status="interrupted"><failure message="x"/></testcase>
<testcase name="[It] [sig-network] DNS should begin" status="failed"><failure message="" type="failed">[FAILED] too late
In [BeforeEach] at: k8s.io/kubernetes/test/e2e/framework/framework.go:372 @ 11/27/26</failure></testcase>
</testsuite></testsuites>
"""
READ = {
    "[sig-network] Services should serve a basic endpoint from pods [Conformance]": Outcome("passed"),
    "[sig-network] Services should work": Outcome("failed", "timed out &lt;after&gt; 2m 0s"),
    "[sig-network] Services should be in the cloud": Outcome("skipped", "Only supported for providers gce"),
    "[sig-network] DNS should hang": Outcome("failed", "timedout"),
}
KROUTE = Run("kroute", "2026-11-27", "0123456789ab", "Linux 7.3.4 (built)")
RESULTS: Results = {("kroute", title(case)): (outcome, KROUTE) for case, outcome in READ.items()}


def test_the_outcome_of_each_case_in_focus_is_read(tmp_path: Path) -> None:
    (tmp_path / "junit_01.xml").write_text(JUNIT)
    assert read(tmp_path.glob("*.xml")) == READ


def test_the_section_has_the_runs_and_a_row_for_each_case_with_the_proxies_beside_each_other() -> None:
    kube_proxy = Run("kube-proxy nftables", "2026-11-26", "0123456789ab", "Linux")
    new = {("kube-proxy nftables", title("[sig-network] Services new [A|B]")): (Outcome("passed"), kube_proxy)}
    lines, not_run = section({**RESULTS, **new}, "1.36.2").splitlines(), " not run |"
    assert "| 1 | kroute | 2026-11-27 | 0123456789ab | Linux 7.3.4 (built) | 1 | 2 | 1 |" in lines
    assert "| case | kroute | kroute iptables=true | kroute IPv6 only | kube-proxy nftables |" in lines
    assert f"| sig-network: Services should serve a basic endpoint from pods | passed (1) |{not_run * 3}" in lines
    assert (
        f"| sig-network: Services should work | **failed** (1): timed out &lt;after&gt; 2m 0s |{not_run * 3}" in lines
    )
    assert f"| sig-network: Services new |{not_run * 3} passed (2) |" in lines


def test_cases_about_policies_have_a_table_with_the_proxies_that_ran_them() -> None:
    case, run = "sig-network: Netpol should deny", Run("kroute x=true", "2026-11-26", "0123456789ab", "Linux")
    results: Results = {**RESULTS, ("kroute x=true", case): (Outcome("passed"), run)}
    text = section(results, "1.36.2")
    assert text.endswith("\n\n| case | kroute x=true |\n|---|---|\n| sig-network: Netpol should deny | passed (2) |\n")
    assert text.count("| kroute | kroute iptables=true | kroute IPv6 only | kube-proxy nftables |\n") == 1
    assert results_of(text) == results


def test_the_section_takes_the_place_of_the_one_before_it() -> None:
    first = with_section("# Page\n\ntext\n", section(RESULTS, "1.36.1"))
    page = with_section(first, section(RESULTS, "1.36.2"))
    assert page == first.replace("1.36.1", "1.36.2")
    assert page == f"# Page\n\ntext\n{section_of(page)}"
    assert section_of("# Page\n\ntext\n") == ""


def test_what_a_page_says_is_kept_when_other_cases_run() -> None:
    later = Run("kroute", "2026-11-28", "later", "Linux")
    results = {**RESULTS, ("kroute", "sig-network: Services should work"): (Outcome("passed"), later)}
    page = with_section("# Page\n", section(results, "1.36.2"))
    assert results_of(page) == results
    assert "| 1 | kroute | 2026-11-27 | 0123456789ab | Linux 7.3.4 (built) | 1 | 1 | 1 |" in page.splitlines()
    assert "| 2 | kroute | 2026-11-28 | later | Linux | 1 | 0 | 0 |" in page.splitlines()
    assert results_of("# Page\n") == {}


PROGRAM = """#!/bin/bash
for word; do case $word in --report-dir=*) report=${word#*=} ;; --ginkgo.focus=*) focus=${word#*=} ;; esac; done
case $focus in *unfinished*) exit 1 ;; esac
IFS='|' read -ra names <<<"$focus"
for name in "${names[@]}"; do
    name=$(sed 's/^ //; s/\\$$//; s/\\\\//g' <<<"$name")
    echo "<testcase name='[It] $name' status='passed'/>"
done >"$report/cases"
echo "<testsuite>$(cat "$report/cases")</testsuite>" >"$report/junit_01.xml"
"""
"""Stands in for e2e.test 1.36.2, whose files are like JUNIT: each case in its focus has passed, and an unfinished
one is not named."""


def test_cases_run_in_portions_and_one_without_an_end_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "e2e.test"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setattr(kubernetes, "required", lambda _: program)
    cluster = SimpleNamespace(
        kubeconfig="kubeconfig",
        environment=os.environ,
        wire=SimpleNamespace(inside=contextlib.nullcontext),
        control=SimpleNamespace(place=SimpleNamespace(families=(6,))),
    )
    services = [f"[sig-network] Services should do {number}" for number in range(2 * e2e.PORTION)]
    serial = ["[sig-network] Services [Serial] one", "[sig-network] Services [Serial] unfinished"]
    both = "[sig-network] [Feature:IPv6DualStack] should create"
    portions = list(e2e.Suite(cluster, tmp_path).run([both, *services, *serial]))  # type: ignore[arg-type]
    assert portions[0] == {both: Outcome("skipped", "needs both families")}
    assert [len(outcomes) for outcomes in portions[1:]] == [e2e.PORTION, e2e.PORTION, 1, 0]
    passed = {case: outcome for outcomes in portions[1:] for case, outcome in outcomes.items()}
    assert passed == dict.fromkeys([*services, serial[0]], Outcome("passed"))


def test_outcomes_are_put_into_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(with_section("# Page\n", section(RESULTS, "1.36.2")))
    monkeypatch.setattr(e2e, "PAGE", page)
    later = Run("kroute", "2026-11-28", "later", "Linux")
    e2e.write(later, {"[sig-network] Services should work": Outcome("passed")})
    assert results_of(page.read_text()) == {
        **RESULTS,
        ("kroute", "sig-network: Services should work"): (Outcome("passed"), later),
    }


def test_a_case_of_both_families_is_not_run_on_a_cluster_with_one() -> None:
    case = "[sig-network] [Feature:IPv6DualStack] should create service with ipv6 cluster ip"
    assert (why_not_run(case), why_not_run(case, (6,))) == ("", "needs both families")


def test_cases_about_load_balancers_run_where_there_are_some() -> None:
    case = "[sig-network] LoadBalancers [Feature:LoadBalancer] should {} [Slow]"
    assert why_not_run(case.format("work"), has_load_balancers=True) == ""
    finalizer = case.format("handle load balancer cleanup finalizer for service")
    assert why_not_run(finalizer, has_load_balancers=True) == "about a cloud's controller itself"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("[sig-network] Services should serve a basic endpoint from pods [Conformance]", ""),
        ("[sig-network] Netpol NetworkPolicy should support allow-all policy [Feature:NetworkPolicy]", ""),
        ("[sig-network] LoadBalancers [Feature:LoadBalancer] should work [Slow]", "needs load balancers"),
        (
            "[sig-network] Services should work after restarting kube-proxy [Disruptive]",
            NOT_RUN[r"\[Disruptive\]|\[Feature:KubeProxyDaemonSet"],
        ),
    ],
)
def test_a_case_that_is_not_run_has_a_reason(case: str, reason: str) -> None:
    assert why_not_run(case) == reason
