"""What the end-to-end tests of Kubernetes say in their JUnit files, and the section of docs/conformance.md about it."""

import html
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

SECTION = "## Kubernetes' own tests"
"""The heading. The section ends the page."""
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_PREFIX = "[It] "
_LONGEST_REASON = 160
_HEAD = """
`e2e.test` of Kubernetes {version}, against a real cluster of three nodes in three zones in the lab (kube-apiserver,
kubelet, containerd), with each proxy in turn. `make e2e` runs it and writes this section. What fails with kube-proxy as
well is the cluster's.
"""


class Outcome(msgspec.Struct, frozen=True):
    """What became of a case: `passed`, `failed` or `skipped`, and why."""

    status: str
    why: str = ""


class Run(msgspec.Struct, frozen=True):
    """A run with one proxy: the day (UTC), the commit, the kernel, and the outcome of each case."""

    proxy: str
    date: str
    commit: str
    kernel: str
    cases: dict[str, Outcome]


def read(files: Iterable[Path]) -> dict[str, Outcome]:
    """The outcomes in JUnit files of ginkgo, by the cases' names, without those out of its focus or interrupted."""
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
    if status == "interrupted":
        return None
    return Outcome(FAILED, _message(case, "failure") or _message(case, "error") or status)


def _message(case: ET.Element, kind: str) -> str:
    found = case.find(kind)
    said = "" if found is None else found.get("message") or found.text or ""
    said = said.removeprefix("[FAILED] ").partition("\nIn [")[0]
    text = " ".join(re.sub(r"[|`*_\[\]]", " ", html.escape(said, quote=False)).split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"


def section(runs: Sequence[Run], version: str) -> str:
    """The section of docs/conformance.md for these runs, oldest first: who ran what, and a row for each case.

    The last run with a proxy that had the case says what became of it.
    """
    proxies = sorted({run.proxy for run in runs}, key=lambda proxy: (proxy.startswith("kube-proxy"), proxy))
    found = {(run.proxy, case): (outcome, run) for run in runs for case, outcome in run.cases.items()}
    lines = [SECTION, _HEAD.format(version=version)]
    lines += ["| the run | date | commit | kernel | passed | failed | skipped |", "|---|---|---|---|---|---|---|"]
    counts: dict[tuple[str, ...], Counter[str]] = {}
    for run in sorted(runs, key=lambda run: proxies.index(run.proxy)):
        of_run = counts.setdefault((run.proxy, run.date, run.commit, run.kernel), Counter())
        of_run.update(outcome.status for outcome, by in found.values() if by is run)
    for who, of_run in counts.items():
        if of_run:
            lines.append(f"| {' | '.join([*who, *(str(of_run[status]) for status in (PASSED, FAILED, SKIPPED))])} |")
    lines += ["", f"| case | {' | '.join(proxies)} |", "|---|" + "---|" * len(proxies)]
    for case in sorted({case for _, case in found}):
        cells = (_cell(found[proxy, case][0] if (proxy, case) in found else None) for proxy in proxies)
        lines.append(f"| {_title(case)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _title(case: str) -> str:
    """A case without its labels."""
    return " ".join(
        re.sub(r"\[(?!sig-)[^]]*\]", "", case).replace("[", "").replace("]", ":", 1).replace("|", "/").split()
    )


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not run"
    status = f"**{FAILED}**" if outcome.status == FAILED else outcome.status
    return f"{status}: {outcome.why}" if outcome.why else status


def with_section(page: str, text: str) -> str:
    """The page with this text in place of its section, which ends it."""
    return f"{page.partition(SECTION)[0].rstrip()}\n\n{text}"


def section_of(page: str) -> str:
    """The section that a page has, with the empty line before it; empty if it has none."""
    return f"\n{SECTION}{rest}" if (rest := page.partition(SECTION)[2]) else ""


def kept(directory: Path) -> list[Run]:
    """All runs that were written to `directory`, in the order of their files' names: oldest first."""
    return [msgspec.json.decode(file.read_bytes(), type=Run) for file in sorted(directory.glob("*.json"))]


def keep(run: Run, file: Path) -> None:
    """Write a run, in place of what the file has."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(msgspec.json.encode(run))
    unfinished.rename(file)


def last(runs: Iterable[Run], proxy: str) -> dict[str, Outcome]:
    """What became of each case when it last ran with a proxy."""
    return {case: outcome for run in runs if run.proxy == proxy for case, outcome in run.cases.items()}
