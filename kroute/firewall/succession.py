"""Replaces another backend: removes what that backend left on the node, once the chosen backend does its work.

The rules of both may exist at once: a packet that one has masqueraded or refused, the other leaves as it is. So there
is no moment without rules, and no connection is disturbed.
"""

import asyncio
from typing import Protocol

import structlog

from kroute.base.backoff import Backoff
from kroute.firewall.backend import BACKENDS, clients_of, firewall_of, present, removables, settled_on
from kroute.kernel.errors import KernelError
from kroute.kernel.node_kernel import open_kernel
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings

log = structlog.get_logger(__name__)

FIRST_PAUSE = 0.5
"""Seconds before the second attempt; later ones are up to a resync period apart."""


class Filling(Protocol):
    """What `replace_others` asks the controller that fills the chosen backend."""

    @property
    def node(self) -> NodeFacts | None:
        """The facts of the node that the rules are for; None before they are known."""

    @property
    def refused(self) -> int:
        """How many set entries the kernel has refused."""


async def replace_others(settings: Settings, filling: Filling) -> None:
    """Return once no other backend has anything on the node. The backend is settled, and its sets were filled once.

    The reason that prevents the replacement is logged when it changes, and the replacement is tried again.
    """
    backoff = Backoff(FIRST_PAUSE, settings.resync_period)
    said = ""
    while hindrance := await _attempt(settings, filling):
        if hindrance != said:
            log.warning(
                "firewall.not_replaced", why=hindrance, next_step="both backends are in place meanwhile; trying again"
            )
        said = hindrance
        await asyncio.sleep(backoff.delay())


async def _attempt(settings: Settings, filling: Filling) -> str:
    """Remove the others; returns why that is not possible now, or "" if there are none."""
    try:
        others = [name for name in await present(settings) if name != settings.firewall]
        return (await _hindrance(settings, filling) or await _remove(settings, others)) if others else ""
    except KernelError as error:
        return str(error)


async def _hindrance(settings: Settings, filling: Filling) -> str:
    """What the chosen backend has yet to do, as a sentence; "" if it does its work."""
    node = filling.node
    if node is None or filling.refused:
        return f"{filling.refused} set entries are refused" if filling.refused else "the node's plan is not known yet"
    served = [family for family, address in zip(Family, (node.ipv4, node.ipv6), strict=True) if address is not None]
    async with open_kernel(settings.proc_sys, only=clients_of(settings)) as kernel:
        firewall = firewall_of(settings, kernel)
        found = [what for family in served for what in await firewall.rule_differences(family, node)]
    return next(iter(found), "")


async def _remove(settings: Settings, names: list[str]) -> str:
    """Remove what these backends have; returns what could not be removed, or ""."""
    report = CleanupReport()
    for name in names:
        with report.step(name):
            if missing := BACKENDS[name].missing_tools():
                raise KernelError(missing[0])
            async with open_kernel(settings.proc_sys, only=BACKENDS[name].clients) as kernel:
                for one in removables(settled_on(settings, name), name, kernel):
                    await one.remove(report)
    if not report.failed:
        log.info("firewall.replaced", backends=names, by=settings.firewall, undone=len(report.undone))
    return next(iter(report.failed), "")
