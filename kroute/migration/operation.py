"""`kroute migrate`: do it, and print what was found or done, for people or for scripts."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import click
import msgspec

from kroute.checks import preflight
from kroute.checks.known_proxies import OTHER_PROXIES, OtherProxy
from kroute.controllers.masquerade.address_sets import IPV4, IPV6
from kroute.kernel.errors import KernelError
from kroute.migration.hand_over import HandOver, hand_over, look_back
from kroute.migration.leftovers import Leavings
from kroute.migration.saved_rules import TableLeavings
from kroute.migration.take_over import Outcome, RefusalError, look, take_over
from kroute.migration.take_over_options import TakeOverOptions
from kroute.reconcile.ledger import LedgerError
from kroute.runtime.state_dir import StateDirectoryError
from kroute.settings import Settings

T = TypeVar("T")


def migrate_from(name: str, settings: Settings, options: TakeOverOptions, *, do: bool, as_json: bool) -> int:
    """Show what the proxy left, or take it over. Returns the exit code: 1 for a refusal, or if something is left."""
    proxy = OTHER_PROXIES[name]
    if do:
        return _run(take_over(proxy, settings, options), lambda outcome: _print_outcome(outcome, as_json=as_json))
    return _run(look(proxy, settings, options.node_ports), lambda it: _print_leavings(proxy, it, as_json=as_json))


def migrate_to(name: str, settings: Settings, *, force: bool, do: bool, as_json: bool) -> int:
    """Show what a hand-over to the proxy would do, or do it. Returns the exit code, as `migrate_from`."""
    proxy = OTHER_PROXIES[name]
    if do:
        return _run(hand_over(proxy, settings, force=force), lambda outcome: _print_outcome(outcome, as_json=as_json))
    return _run(look_back(proxy, settings), lambda plan: _print_hand_over(proxy, settings, plan, as_json=as_json))


def _run(work: Coroutine[None, None, T], show: Callable[[T], int]) -> int:
    try:
        return show(asyncio.run(_after_preflight(work)))
    except (KernelError, LedgerError, StateDirectoryError, RefusalError) as error:
        click.echo(f"kroute: {error}", err=True)
        return 1


async def _after_preflight(work: Coroutine[None, None, T]) -> T:
    try:
        if lacks := await preflight.lacks():
            raise KernelError("; ".join(lacks))
        return await work
    finally:
        work.close()


def _print_outcome(outcome: Outcome, *, as_json: bool) -> int:
    if as_json:
        _print_json(outcome)
    else:
        for line in outcome.done:
            click.echo(line)
        click.echo(outcome.next_step)
    _warn_of_unseen(outcome.unseen)
    for line in outcome.failed:
        click.echo(f"kroute: not done: {line}", err=True)
    return 1 if outcome.failed else 0


def _print_leavings(proxy: OtherProxy, leavings: Leavings, *, as_json: bool) -> int:
    if as_json:
        _print_json(leavings.as_plain())
        return 0
    if leavings.are_removed:
        click.echo(f"nothing of {proxy.name}'s is left on this node")
    else:
        click.echo("\n".join([f"What {proxy.name} left on this node:", *_describe(leavings)]))
    for key in leavings.others:
        click.echo(f"not {proxy.name}'s, and left alone: virtual server {key}")
    _warn_of_unseen(leavings.unseen)
    return 0


def _warn_of_unseen(variants: Sequence[str]) -> None:
    for variant in variants:
        click.echo(f"kroute: cannot look at {variant} rules: install the iptables package with its tools", err=True)


def _describe(leavings: Leavings) -> Iterator[str]:
    """One line a thing; of what there may be thousands, the number."""
    if leavings.link is not None:
        yield f"  link {leavings.link} with {len(leavings.addresses)} addresses"
    if leavings.to_adopt:
        yield f"  {len(leavings.to_adopt)} virtual servers: {_first_of(leavings.to_adopt)}"
    if leavings.adopted:
        yield f"  {len(leavings.adopted)} virtual servers that are kroute's by now"
    for table in leavings.tables:
        yield from _describe_table(table)
    for name in leavings.sets:
        yield f"  set {name}"
    for family, mark in leavings.marks:
        yield f"  {IPV6.name if family == IPV6.number else IPV4.name} virtual server of mark {mark:#x}"
    for thing in (*leavings.policy_rules, *leavings.routes):
        yield f"  {thing}"
    for name, value in leavings.sysctls.items():
        yield f"  sysctl {name} = {value}, which stays"


def _describe_table(table: TableLeavings) -> Iterator[str]:
    where = f"  {table.variant} table {table.table}"
    for rule in table.rules:
        yield f"{where}: rule {rule}"
    if table.chains:
        yield f"{where}: chains {' '.join(table.chains)}"
    for chain in table.kept:
        yield f"{where}: chain {chain}, which stays: another program's rule leads to it"


def _print_hand_over(proxy: OtherProxy, settings: Settings, plan: HandOver, *, as_json: bool) -> int:
    if as_json:
        _print_json(plan)
        return 0
    click.echo(f"{len(plan.vips)} addresses are on {settings.dummy_interface}")
    for address in plan.unserved:
        click.echo(f"  {address} is not served by {proxy.name}")
    for address in plan.missing:
        click.echo(f"  {address} would be bound to {proxy.link}")
    click.echo(
        "virtual servers and sysctls stay; kroute's rules and sets go" + ("" if plan.keeps_link else ", and its link")
    )
    return 0


def _first_of(things: Sequence[object], count: int = 3) -> str:
    return ", ".join(map(str, things[:count])) + (" ..." if len(things) > count else "")


def _print_json(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
