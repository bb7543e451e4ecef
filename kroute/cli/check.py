"""`kroute check`: whether this node and this cluster meet kroute's prerequisites."""

import asyncio
from typing import ClassVar

import click
import msgspec

from kroute import logs
from kroute.checks.api_checks import NO_API, Known, check_api
from kroute.checks.finding import Finding, Level, failed
from kroute.checks.node_checks import NODE, check_node, check_node_addresses
from kroute.cli.parameters.other_proxies_flags import FlagsCommand
from kroute.cli.parameters.settings_in_force import settings_in_force
from kroute.cli.terminal.formats import output_option, show
from kroute.cli.terminal.output import AS_ROOT, DONE, FAILURE, lacks_privileges
from kroute.cli.terminal.screen import Screen
from kroute.kernel.errors import KernelError
from kroute.model.document import Document
from kroute.model.node_facts import node_facts
from kroute.settings import Settings
from kroute.watchers.initial_sync import InitialSyncError, node_object
from kroute.watchers.node import read_node_interfaces

MANIFESTS = "manifests"
COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.FAIL: "red"}


class Report(Document):
    """What was checked. `ready`: whether no check failed."""

    kind: ClassVar[str] = "FindingList"

    ready: bool
    findings: list[Finding] = msgspec.field(name="items")

    def names(self) -> list[str]:
        """The checks that did not pass."""
        return [it.check for it in self.findings if it.level is not Level.OK]


@click.command(cls=FlagsCommand)
@output_option
@settings_in_force
def check(settings: Settings, *, output: str) -> int:
    """Look whether the node and the cluster have what kroute needs; each finding comes with its next step.

    Exits with 0 if no check failed, even with warnings, else with 1.
    """
    logs.configure("console", "error")  # only the findings are printed
    findings = asyncio.run(findings_of(settings))
    report = Report(all(finding.level is not Level.FAIL for finding in findings), findings)
    show(report, output, print_findings)
    return DONE if report.ready else FAILURE


async def findings_of(settings: Settings) -> list[Finding]:
    """All findings, those of the node first."""
    findings: list[Finding] = []
    cluster: list[Finding] = []
    known = NO_API
    if settings.manifests is None:
        cluster, known = await check_api(settings)
    else:
        try:
            known = Known(await node_object(settings))
        except InitialSyncError as error:
            cluster = [failed(MANIFESTS, str(error), "correct it: what it said last is served, or nothing")]
            known = Known(None, "the manifests cannot be read")
    try:
        interfaces = await read_node_interfaces(settings.dummy_interface)
        facts = node_facts(settings, known.node, interfaces)
        findings += await check_node(settings, ipv6=facts.ipv6 is not None)
        cluster += check_node_addresses(known.node, facts, interfaces, known.unknown)
    except KernelError as error:
        step = AS_ROOT if lacks_privileges(error) else "first correct what failed"
        findings.append(failed(NODE, str(error), step))
    return findings + cluster


def print_findings(report: Report, screen: Screen) -> None:
    """Print one line for each finding, and below it what to do."""
    width = max((len(it.check) for it in report.findings), default=0)
    indent = len("WARNING  ") + width + len("  ")
    for finding in report.findings:
        first, *more = screen.folded(f"{finding.level:<9}{finding.check:<{width}}  {finding.message}", indent)
        click.echo(click.style(first[:9], fg=COLOURS[finding.level]) + first[9:])
        for line in more:
            click.echo(line)
        if finding.next_step:
            screen.line(f"{'':<{indent}}-> {finding.next_step}", hang=indent + 3)
