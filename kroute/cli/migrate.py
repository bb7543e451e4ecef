"""`kroute migrate`: show what another service proxy left on this node, take it over, or give it back."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import click

from kroute.checks import preflight
from kroute.checks.other_proxies import OTHER_PROXIES, OtherProxy
from kroute.cli.parameters.options import DURATION, Parsed
from kroute.cli.parameters.run_options import settings_in_force
from kroute.cli.parameters.settings_command import FlagsCommand
from kroute.cli.terminal.formats import output_option, show
from kroute.cli.terminal.output import DONE, FAILURE, complain, refusing
from kroute.cli.terminal.screen import Screen
from kroute.kernel.errors import KernelError
from kroute.migration.hand_over import HandOver, hand_over, look_back, until_it_serves
from kroute.migration.leftovers import Leftovers, TableLeftovers
from kroute.migration.take_over import (
    DEFAULTS,
    Outcome,
    RefusalError,
    TakeOverOptions,
    look,
    parse_port_range,
    take_over,
)
from kroute.model.addresses import Family
from kroute.reconcile.ledger import LedgerError
from kroute.runtime.runner import stop_signal, unless
from kroute.runtime.state_dir import StateDirectoryError
from kroute.settings import PortRange, Settings
from kroute.settings.text import write_duration

T = TypeVar("T")

PROXIES = list(OTHER_PROXIES)


@click.command(cls=FlagsCommand)
@click.option("--from", "origin", type=click.Choice(PROXIES), default=None, help="The proxy that had this node.")
@click.option("--to", "destination", type=click.Choice(PROXIES), default=None, help="The proxy that is to have it.")
@click.option(
    "--take-over",
    "takes_over",
    is_flag=True,
    help="With --from: adopt what serves, or beside an agent remove the rest.",
)
@click.option(
    "--hand-over", "hands_over", is_flag=True, help="With --to: remove what is kroute's alone, and leave what serves."
)
@click.option(
    "--force",
    is_flag=True,
    help="Proceed even if the other proxy seems to run, or does not serve every VIP of kroute's.",
)
@click.option(
    "--wait",
    type=DURATION,
    default=write_duration(DEFAULTS.wait),
    show_default=True,
    help="How long to wait for the agent to become ready, or with --hand-over for the other proxy to serve every VIP.",
)
@click.option("--stay", "stays", is_flag=True, help="With --hand-over: then do nothing until SIGTERM, for a DaemonSet.")
@click.option(
    "--node-port-range",
    type=Parsed("PORT-PORT", parse_port_range),
    default=str(DEFAULTS.node_ports),
    show_default=True,
    help="The cluster's range of node ports, as the API server has it.",
)
@output_option
@settings_in_force
def migrate(
    settings: Settings,
    *,
    origin: str | None,
    destination: str | None,
    takes_over: bool,
    hands_over: bool,
    force: bool,
    wait: float,
    stays: bool,
    node_port_range: PortRange,
    output: str,
) -> int:
    """Show what another service proxy left on this node and take it over, or hand the node back to it.

    Takes the options of `kroute run`. If an agent runs, its settings apply to every option that is not given. Services
    are read only to find out whose a virtual server is that neither a link nor a set of the other proxy names.
    """
    other = origin or destination
    if other is None or (origin and destination):
        raise click.UsageError("give one of --from and --to: the proxy that had the node, or that is to have it")
    if (takes_over and destination) or (hands_over and origin):
        raise click.UsageError("--take-over goes with --from, and --hand-over with --to")
    if stays and not hands_over:
        raise click.UsageError("--stay goes with --hand-over")
    options = TakeOverOptions(node_port_range, wait, force, is_by_hand=True)
    proxy = OTHER_PROXIES[other]
    with refusing(KernelError, LedgerError, StateDirectoryError, RefusalError):
        if takes_over:
            return _show_outcome(asyncio.run(_prepared(settings, lambda: take_over(proxy, settings, options))), output)
        if hands_over:
            return asyncio.run(_hand_over(proxy, settings, options, output, stays=stays))
        if origin:
            leftovers = asyncio.run(_prepared(settings, lambda: look(proxy, settings, options)))
            return _show_leftovers(proxy, leftovers, output)
        plan = asyncio.run(_prepared(settings, lambda: look_back(proxy, settings)))
        show(plan, output, lambda plan, screen: print_hand_over(proxy, settings, plan, screen))
        return DONE


async def _prepared(settings: Settings, work: Callable[[], Awaitable[T]]) -> T:
    """Do the work, if the kernel has what every part of a migration needs. Else raises KernelError."""
    if missing := await preflight.missing_for_undoing(settings):
        raise KernelError("; ".join(missing))
    return await work()


async def _hand_over(proxy: OtherProxy, settings: Settings, options: TakeOverOptions, how: str, *, stays: bool) -> int:
    """Wait for the other proxy, hand over, and with `stays` do nothing more until SIGTERM.

    With `stays`, a SIGTERM ends the wait for the other proxy, too. One that arrives during the hand-over takes effect
    after it.
    """
    stop = stop_signal() if stays else asyncio.Event()

    async def work() -> Outcome | None:
        if not options.force:
            await unless(stop, until_it_serves(proxy, settings, options.wait))
        return None if stop.is_set() else await hand_over(proxy, settings, force=options.force)

    outcome = await _prepared(settings, work)
    code = DONE if outcome is None else _show_outcome(outcome, how)
    if stays and code == DONE:
        sys.stdout.flush()
        await stop.wait()
    return code


def _show_outcome(outcome: Outcome, how: str) -> int:
    show(outcome, how, print_outcome)
    for line in (*outcome.warnings, *(f"not done: {failure}" for failure in outcome.failed)):
        complain(line)
    return FAILURE if outcome.failed else DONE


def print_outcome(outcome: Outcome, screen: Screen) -> None:
    """Print what was done, and what comes next."""
    for line in outcome.done:
        screen.line(line, hang=2)
    screen.line(outcome.next_step, hang=2)


def _show_leftovers(proxy: OtherProxy, leftovers: Leftovers, how: str) -> int:
    show(leftovers.as_document(), how, lambda _, screen: print_leftovers(proxy, leftovers, screen))
    for line in leftovers.warnings:
        complain(line)
    return DONE


def print_leftovers(proxy: OtherProxy, leftovers: Leftovers, screen: Screen) -> None:
    """Print what another proxy left, and below it what is of neither proxy."""
    if leftovers.are_removed:
        screen.line(f"nothing of {proxy.name}'s is left on this node")
    else:
        screen.line(f"What {proxy.name} left on this node:")
        for line in _describe(leftovers, shown=None if screen.is_wide else 3):
            screen.line(line, hang=4)
    for key in leftovers.others:
        screen.line(f"not {proxy.name}'s, and left alone: virtual server {key}", hang=2)


def _describe(leftovers: Leftovers, shown: int | None) -> Iterator[str]:
    """One line for each object; of objects that may be thousands, their number and the first ones."""
    if leftovers.link is not None:
        yield f"  link {leftovers.link} with {len(leftovers.addresses)} addresses"
    if leftovers.to_adopt:
        yield f"  {len(leftovers.to_adopt)} virtual servers: {_first_of(leftovers.to_adopt, shown)}"
    if leftovers.adopted:
        yield f"  {len(leftovers.adopted)} virtual servers that are kroute's by now"
    for table in leftovers.tables:
        yield from _describe_table(table)
    yield from (f"  nft table {table}" for table in leftovers.nft_tables)
    yield from (f"  set {name}" for name in leftovers.sets)
    for family, mark in leftovers.marks:
        yield f"  {Family.IPV6 if family == Family.IPV6.number else Family.IPV4} virtual server of mark {mark:#x}"
    yield from (f"  {thing}" for thing in (*leftovers.policy_rules, *leftovers.routes))
    yield from (f"  tunnel {name}" for name in leftovers.tunnels)
    yield from (f"  file {path}" for path in leftovers.cni_files)
    yield from (f"  sysctl {name} = {value}, which stays" for name, value in leftovers.sysctls.items())


def _describe_table(table: TableLeftovers) -> Iterator[str]:
    where = f"  {table.variant} table {table.table}"
    for rule in table.rules:
        yield f"{where}: rule {rule}"
    if table.chains:
        yield f"{where}: chains {' '.join(table.chains)}"
    for chain in table.kept:
        yield f"{where}: chain {chain}, which stays: another program's rule leads to it"


def print_hand_over(proxy: OtherProxy, settings: Settings, plan: HandOver, screen: Screen) -> None:
    """Print what a hand-over would do."""
    screen.line(f"{len(plan.vips)} addresses are on {settings.dummy_interface}")
    for address in plan.unserved:
        screen.line(f"  {address} is not served by {proxy.name}")
    for address in plan.missing:
        screen.line(f"  {address} would be bound to {proxy.link}")
    link = "" if plan.keeps_link else ", and its link"
    effect = f"virtual servers and sysctls stay; kroute's rules and sets go{link}"
    if plan.translates:
        effect = f"{proxy.name} serves without IPVS: everything of kroute's goes"
    screen.line(effect, hang=2)
    if plan.connections:
        screen.line(f"  {plan.connections} connections are still open through IPVS, and are waited for", hang=2)


def _first_of(things: Sequence[object], number: int | None) -> str:
    return ", ".join(map(str, things[:number])) + (" ..." if len(things) > len(things[:number]) else "")
