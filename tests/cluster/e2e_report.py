"""What the end-to-end tests of Kubernetes say in their JUnit files, and the section of docs/conformance.md about it."""

import html
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

SECTION = "## Kubernetes' own tests"
"""The heading. The section ends the page."""
PROXIES = ("kroute", "kroute iptables=true", "kroute IPv6 only", "kube-proxy nftables")
"""What the section compares about Services, run or not."""
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_PREFIX = "[It] "
_LONGEST_REASON = 160
_NO_NAMESPACE = "In [BeforeEach] at: k8s.io/kubernetes/test/e2e/framework/framework.go:"
_NOT_RUN = "not run"
_CELL = re.compile(r"\**(?P<status>passed|failed|skipped)\** \((?P<run>\d+)\)(: (?P<why>.*))?")
_HEAD = """
`e2e.test` of Kubernetes {version}, against a real cluster of three nodes in three zones in the lab (kube-apiserver,
kubelet, containerd), with each proxy in turn. `make e2e` runs it and writes this section, which has the last outcome of
each case and the number of its run. What fails with kube-proxy as well is the cluster's. What is not run with a proxy
says so. The case that fails with IPv6 alone does so with kube-proxy's IPVS mode, too: with br_netfilter, which the
pods' bridges need, [IPVS refuses IPv6 datagrams above the MTU](kernel-facts.md). The cases about NetworkPolicies have a
table of their own, with the proxies that ran them. They call Services by one address, of the cluster's primary family:
IPv4, unless the proxy's name says IPv6 only. With `pod-network` kroute alone [connects the pods](pod-network.md), by
tunnels between all nodes; in all other runs routes lead to the pods. With `load balancers` kroute gives their addresses
out, and announces them to a router beside the nodes. The cases "reach pod on ipv4 and ipv6 ip" and "disruption during
rolling update" call pods that have no readiness probe as soon as their containers run: on a busy machine, where a
container listens seconds later, they may fail with any proxy.
"""
_POLICIES = re.compile("sig-network: Netpol ")


class Outcome(NamedTuple):
    """What became of a case: `passed`, `failed` or `skipped`, and why."""

    status: str
    why: str = ""


class Run(NamedTuple):
    """A run with one proxy: the day (UTC), the commit, the kernel."""

    proxy: str
    date: str
    commit: str
    kernel: str


Results = dict[tuple[str, str], tuple[Outcome, Run]]
"""What became of a case when it last ran with a proxy, by the proxy and the case's title, and in which run."""


def read(files: Iterable[Path]) -> dict[str, Outcome]:
    """The outcomes in JUnit files of ginkgo, by the cases' names.

    Left out is what did not come to an end: cases out of its focus, interrupted, or without a namespace in time.
    """
    return {
        case.get("name", "").removeprefix(_PREFIX): outcome
        for file in files
        for case in ET.parse(file).iter("testcase")
        if case.get("name", "").startswith(_PREFIX) and (outcome := _outcome(case))
    }


def _outcome(case: ET.Element) -> Outcome | None:
    status = case.get("status", "")
    if status == PASSED:
        return Outcome(PASSED)
    if status in {SKIPPED, "pending"}:
        message = _message(case, "skipped")
        return Outcome(SKIPPED, message.removeprefix("skipped - ")) if message not in {"", "skipped"} else None
    if status == "interrupted" or _NO_NAMESPACE in _said(case, "failure"):
        return None
    return Outcome(FAILED, _message(case, "failure") or _message(case, "error") or status)


def _said(case: ET.Element, kind: str) -> str:
    found = case.find(kind)
    return "" if found is None else found.get("message") or found.text or ""


def _message(case: ET.Element, kind: str) -> str:
    said = _said(case, kind).removeprefix("[FAILED] ").partition("\nIn [")[0]
    text = " ".join(re.sub(r"[|`*_\[\]]", " ", html.escape(said, quote=False)).split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"


def section(results: Results, version: str) -> str:
    """The section of docs/conformance.md: who ran what, and a row for each case with the numbers of the runs."""
    proxies = list(dict.fromkeys([*PROXIES, *sorted(proxy for proxy, _ in results)]))
    about_policies = {key: found for key, found in results.items() if _POLICIES.match(key[1])}
    runs = sorted({run for _, run in results.values()}, key=lambda run: (proxies.index(run.proxy), run))
    numbers = {run: number for number, run in enumerate(runs, 1)}
    lines = [SECTION, _HEAD.format(version=version)]
    lines += [
        "| run | proxy | date | commit | kernel | passed | failed | skipped |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run, number in numbers.items():
        counts = Counter(outcome.status for outcome, by in results.values() if by == run)
        figures = (str(counts[status]) for status in (PASSED, FAILED, SKIPPED))
        lines.append(f"| {' | '.join([str(number), *run, *figures])} |")
    lines += _table({key: results[key] for key in results.keys() - about_policies.keys()}, PROXIES, numbers)
    lines += _table(about_policies, (), numbers)
    return "\n".join(lines) + "\n"


def _table(results: Results, compared: Iterable[str], numbers: Mapping[Run, int]) -> list[str]:
    """A row for each case, and a column for each proxy that is compared or ran one of them."""
    proxies = list(dict.fromkeys([*compared, *sorted(proxy for proxy, _ in results)]))
    lines = ["", f"| case | {' | '.join(proxies)} |", "|---|" + "---|" * len(proxies)]
    for case in sorted({case for _, case in results}):
        found = (results.get((proxy, case)) for proxy in proxies)
        cells = (_cell(it[0], numbers[it[1]]) if it else _NOT_RUN for it in found)
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return lines if results else []


def results_of(page: str) -> Results:
    """What the section of a page says."""
    results: Results = {}
    runs: dict[str, Run] = {}
    proxies: list[str] = []
    for line in section_of(page).splitlines():
        match line.strip("| ").split(" | "):
            case [number, proxy, date, commit, kernel, _, _, _] if number.isdigit():
                runs[number] = Run(proxy, date, commit, kernel)
            case ["case", *proxies]:
                pass
            case [case, *cells] if case.startswith("sig-"):
                for proxy, cell in zip(proxies, cells, strict=True):
                    if found := _CELL.fullmatch(cell):
                        results[proxy, case] = Outcome(found["status"], found["why"] or ""), runs[found["run"]]
    return results


def title(case: str) -> str:
    """A case without its labels, as the page has it."""
    return " ".join(
        re.sub(r"\[(?!sig-)[^]]*\]", "", case).replace("[", "").replace("]", ":", 1).replace("|", "/").split()
    )


def _cell(outcome: Outcome, number: int) -> str:
    status = f"**{FAILED}**" if outcome.status == FAILED else outcome.status
    return f"{status} ({number}){': ' if outcome.why else ''}{outcome.why}"


def with_section(page: str, text: str) -> str:
    """The page with this text in place of its section, which ends it."""
    return f"{page.partition(SECTION)[0].rstrip()}\n\n{text}"


def section_of(page: str) -> str:
    """The section that a page has, with the empty line before it; empty if it has none."""
    return f"\n{SECTION}{rest}" if (rest := page.partition(SECTION)[2]) else ""
