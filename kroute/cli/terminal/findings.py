"""The output of `kroute check`, of a node or of a cluster."""

from typing import ClassVar

import msgspec

from kroute.checks.finding import Finding, Level
from kroute.cli.terminal.formats import show
from kroute.cli.terminal.output import DONE, FAILURE
from kroute.cli.terminal.screen import Screen
from kroute.model.document import Document

COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.FAIL: "red"}


class Report(Document):
    """What was checked. `ready`: whether no check failed."""

    kind: ClassVar[str] = "FindingList"

    ready: bool
    findings: list[Finding] = msgspec.field(name="items")

    def names(self) -> list[str]:
        """The checks that did not pass."""
        return [finding.check for finding in self.findings if finding.level is not Level.OK]


def show_findings(findings: list[Finding], how: str) -> int:
    """Print the findings in one of the formats. Returns the exit code."""
    report = Report(all(finding.level is not Level.FAIL for finding in findings), findings)
    show(report, how, print_findings)
    return DONE if report.ready else FAILURE


def print_findings(report: Report, screen: Screen) -> None:
    """Print one line for each finding, and below it what to do."""
    width = max((len(finding.check) for finding in report.findings), default=0)
    indent = len("WARNING  ") + width + len("  ")
    for finding in report.findings:
        text = f"{finding.level:<9}{finding.check:<{width}}  {finding.message}"
        screen.marked(text, f"{finding.level:<9}", COLOURS[finding.level], hang=indent)
        if finding.next_step:
            screen.line(f"{'':<{indent}}-> {finding.next_step}", hang=indent + 3)
