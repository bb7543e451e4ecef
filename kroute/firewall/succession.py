"""Removes what earlier runs left: of network policies where these are not enforced any more, and another backend's,
once the chosen backend does its work.

The rules of both may exist at once: a packet that one has masqueraded or refused, the other leaves as it is. So there
is no moment without rules, and no connection is disturbed.
"""

import asyncio
from collections.abc import Awaitable, Callable
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


class Writing(Protocol):
    """The same of the controller of network policies."""

    @property
    def has_adopted(self) -> bool:
        """Whether it has written what it plans."""


async def replace_others(settings: Settings, filling: Filling, policies: Writing | None = None) -> None:
    """Return once no other backend has anything on the node. The backend is settled, and its sets were filled once.

    The reason that prevents the replacement is logged when it changes, and the replacement is tried again.
    """

    async def replaced() -> str:
        others = [name for name in await present(settings) if name != settings.firewall]
        return (await _hindrance(settings, filling, policies) or await _remove(settings, others)) if others else ""

    next_step = "both backends are in place meanwhile; trying again"
    await _until_done(replaced, settings.resync_period, "firewall.not_replaced", next_step)


async def remove_policies(settings: Settings) -> None:
    """Return once the chosen backend has nothing of network policies, which an earlier run may have enforced."""
    next_step = "pods stay isolated as they were; trying again"
    await _until_done(lambda: _remove_policies(settings), settings.resync_period, "policies.not_removed", next_step)


async def _until_done(attempt: Callable[[], Awaitable[str]], longest: float, event: str, next_step: str) -> None:
    """Attempt until it returns "". What it returns else, or raises as KernelError, is logged when it changes.

    `longest` is the longest pause, in seconds.
    """
    backoff = Backoff(FIRST_PAUSE, longest)
    said = ""
    while True:
        try:
            hindrance = await attempt()
        except KernelError as error:
            hindrance = str(error)
        if not hindrance:
            return
        if hindrance != said:
            log.warning(event, why=hindrance, next_step=next_step)
        said = hindrance
        await asyncio.sleep(backoff.delay())


async def _hindrance(settings: Settings, filling: Filling, policies: Writing | None) -> str:
    """What the chosen backend has yet to do, as a sentence; "" if it does its work."""
    node = filling.node
    if node is None or filling.refused:
        return f"{filling.refused} set entries are refused" if filling.refused else "the node's plan is not known yet"
    if policies is not None and not policies.has_adopted:
        return "network policies are not written yet"
    served = [family for family, address in zip(Family, (node.ipv4, node.ipv6), strict=True) if address is not None]
    async with open_kernel(settings.proc_sys, only=clients_of(settings)) as kernel:
        firewall = firewall_of(settings, kernel)
        found = [what for family in served for what in await firewall.rule_differences(family, node)]
    return next(iter(found), "")


async def _remove_policies(settings: Settings) -> str:
    """Remove what the chosen backend has of network policies; returns what could not be removed, or ""."""
    backend = BACKENDS[settings.firewall]
    async with open_kernel(settings.proc_sys, only=backend.presence_clients) as kernel:
        if not await backend.has_policies(kernel):
            return ""
    report = CleanupReport()
    async with open_kernel(settings.proc_sys, only=backend.clients) as kernel:
        await backend.make_policies(settings, kernel).remove(report)
    if not report.failed:
        log.info("policies.removed", undone=len(report.undone))
    return next(iter(report.failed), "")


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
