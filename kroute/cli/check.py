"""`kroute check`: whether this node and this cluster meet kroute's prerequisites."""

import asyncio

import click

from kroute.checks.api_checks import Known, check_api
from kroute.checks.finding import Finding, failed
from kroute.checks.node_checks import NODE, check_node, check_node_addresses
from kroute.cli.fleet.agents import NAMESPACE
from kroute.cli.parameters.run_options import settings_in_force
from kroute.cli.parameters.settings_command import FlagsCommand
from kroute.cli.terminal.findings import show_findings
from kroute.cli.terminal.formats import output_option
from kroute.cli.terminal.output import AS_ROOT, lacks_privileges
from kroute.kernel.errors import KernelError
from kroute.model.node_facts import node_facts
from kroute.settings import Settings
from kroute.watchers.initial_sync import InitialSyncError, node_object
from kroute.watchers.node import read_node_interfaces

MANIFESTS = "manifests"


@click.command(cls=FlagsCommand)
@output_option
@click.option(
    "--cluster",
    is_flag=True,
    help="Read the cluster by a kubeconfig, not this node: what an installation would meet. Needs no rights on a node.",
)
@click.option(
    "-n", "--namespace", default=NAMESPACE, show_default=True, help="With --cluster: where kroute is to be installed."
)
@settings_in_force
def check(settings: Settings, *, output: str, cluster: bool, namespace: str) -> int:
    """Look whether the node and the cluster have what kroute needs; each finding comes with its next step.

    Exits with 0 if no check failed, even with warnings, else with 1.
    """
    if not cluster:
        return show_findings(asyncio.run(findings_of(settings)), output)
    from kroute.cli.installation import findings_by_api  # noqa: PLC0415  before an installation only

    return show_findings(asyncio.run(findings_by_api(settings, namespace)), output)


async def findings_of(settings: Settings) -> list[Finding]:
    """All findings, those of the node first."""
    findings: list[Finding] = []
    cluster: list[Finding] = []
    if settings.manifests is None:
        cluster, known = await check_api(settings)
    else:
        try:
            known = Known(await node_object(settings))
        except InitialSyncError as error:
            next_step = "correct the manifests: until then kroute serves what they said last, or nothing"
            cluster = [failed(MANIFESTS, str(error), next_step)]
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
