"""Who serves the Services of this node: at any time one service proxy, by one rule.

The rule, which docs/one-proxy.md explains to operators:

1. An agent that served the node before, as its ledger says, owns the node and goes on. The agent finishes a take-over
   that the ledger shows to be unfinished, unless the other proxy is at work again.
2. An agent that finds another proxy at work waits: it watches and plans, and writes nothing to the kernel.
3. A proxy that is silent has ended for good when the cluster says that none of its Pods is meant for this node any
   more. Until the cluster says so, the agent waits on. Where the cluster has never heard of such a Pod, or does not
   tell, the proxy has ended after `Settings.take_over_after` seconds of silence.
4. Then the node is the agent's: it adopts what the other proxy serves, goes live, and removes what is left.
5. A proxy that comes to a node which the agent owns is a rival. The agent goes on, says so, and repairs what the rival
   changes, at once and then once a minute at most. So is another program that enforces network policies, if the agent
   does: the agent says so, and nothing else.

`--other-proxies ignore` leaves out all of it. `Ownership` decides and tells; it writes nothing to the kernel itself.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

import structlog

from kroute.base.backoff import retry_when_exhausted
from kroute.checks.other_proxies import KUBE_ROUTER, OTHER_PROXIES
from kroute.checks.running_proxies import Sign, signs_of_life
from kroute.kernel.errors import KernelError
from kroute.model.plan import Problem
from kroute.settings import WAIT, Settings
from kroute.watchers.kubernetes.errors import ApiError

if TYPE_CHECKING:
    from kroute.checks.policy_enforcers import Presence
    from kroute.watchers.kubernetes.api import Api

log = structlog.get_logger(__name__)

WAITING_LOOK, SERVING_LOOK = 2.0, 5.0
"""Seconds between two looks at the node."""
ASK_AGAIN, ASK_RARELY = 10.0, 600.0
"""Seconds until the cluster is asked again: about a silent proxy, about a program whose port alone proves nothing."""
ENDS_WITHIN = 120.0
"""Seconds in which a process has ended whose Pod the cluster has ended: four times as long as Pods have by default."""
WAITING, RIVAL, RIVAL_POLICIES = "WaitingForServiceProxy", "RivalServiceProxy", "RivalPolicyEnforcer"
"""The reasons of the Events on the Node."""

WAY_OUT = "to serve beside it all the same, give --other-proxies ignore"

Report = Callable[[Problem], None]
Traces = Callable[[], Awaitable[Collection[str]]]
"""Finds the proxies of which something is in the kernel."""
EnforcerSeen = Callable[[], "Presence | None"]
"""Who else enforces network policies, if the agent does, by the last `Traces`."""
Hindrance = Callable[[frozenset[str]], Awaitable[Sign | None]]
Remove = Callable[[Collection[str]], None]
Look = Callable[..., Awaitable[list[Sign]]]


class _Silence:
    """What is known of proxies that are silent: which were seen at work, which the cluster wanted, since when."""

    def __init__(self) -> None:
        self.seen: frozenset[str] = frozenset()
        self.meant = ""
        self.since: float | None = None

    def broken_by(self, proxy: str, *, is_meant: bool) -> None:
        self.seen |= {proxy}
        self.since = None
        self.meant = proxy if is_meant else self.meant


class _MeantProxies:
    """Asks the cluster which other proxies are meant for this node. Without an API server it does not tell."""

    def __init__(self, api: "Api | None", node_name: str, clock: Callable[[], float]) -> None:
        self.last: Mapping[str, str] | None = None
        """The last answer there was."""
        self.tells = False
        """Whether there was one to the last question."""
        self.before = ""
        """The proxy that the cluster wanted here before this agent's turn came."""
        self._api = api
        self._node_name = node_name
        self._clock = clock
        self._asked_at = -math.inf
        self._complaint = ""

    async def ask(self, pause: float) -> Mapping[str, str] | None:
        """What the cluster says, or said in the last `pause` seconds; None if it does not tell."""
        if self._api is not None and self._clock() - self._asked_at >= pause:
            self._asked_at, self.tells = self._clock(), False
            question = partial(_proxies_of_node, self._api, self._node_name)
            try:
                self.last = await retry_when_exhausted("asking the cluster for other proxies", question)
                self.tells, self._complaint = True, ""
            except ApiError as error:
                if (complaint := str(error)) != self._complaint:
                    self._complaint = complaint
                    log.warning("other_proxies.unknown", error=complaint, next_step="silence alone counts meanwhile")
        return self.last if self.tells else None


class _Traces:
    """The proxies of which something is in the kernel, or was when it could be read."""

    def __init__(self, read: Traces, enforcer: EnforcerSeen) -> None:
        self._read = read
        self._enforcer = enforcer
        self._seen: frozenset[str] = frozenset()

    async def now(self) -> frozenset[str]:
        try:
            self._seen = frozenset(await retry_when_exhausted("looking for other proxies' rules", self._read))
        except KernelError as error:
            log.warning("other_proxies.unreadable", error=str(error))
        return self._seen

    def enforcer(self) -> Sign | None:
        found = self._enforcer()
        return Sign(found.enforcer.name, found.why, has_policies=True) if found is not None else None


class Ownership:
    """Follows the other proxies of one node.

    `report` and `take_back` get problems of the node as they come and go. `api` asks the cluster; None: there is no API
    server. `traces` finds what other proxies have in the kernel, `enforcer` who else enforces network policies.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        report: Report,
        take_back: Report,
        api: "Api | None",
        traces: Traces,
        enforcer: EnforcerSeen = lambda: None,
        look: Look = signs_of_life,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.waits_for: Sign | None = None
        """While the agent waits: for which proxy, and why."""
        self.rival: Sign | None = None
        """The proxy, or else the enforcer of network policies, that is at work on a node that the agent owns."""
        self.is_ours = asyncio.Event()
        """Set by the agent when it begins to write to the kernel."""
        self.held_ports: set[int] = set()
        """The ports that this process listens on, which are no sign of another proxy."""
        self._settings = settings
        self._report = report
        self._take_back = take_back
        self._cluster = _MeantProxies(api, settings.node_name, clock)
        self._traces = _Traces(traces, enforcer)
        self._look = look
        self._clock = clock
        self._unfinished: frozenset[str] = frozenset()

    @property
    def waiting_text(self) -> str:
        """Why the agent waits, as a sentence; empty while it does not."""
        return f"waiting: {self.waits_for}" if self.waits_for is not None else ""

    async def turn(self, *, has_served: bool, hindrance: Hindrance, unfinished: Collection[str] = ()) -> frozenset[str]:
        """Return when the node is this agent's, with the proxies from which it takes over.

        `has_served`: its ledger shows that it was so already. `unfinished` are the proxies of which the ledger shows an
        unfinished take-over. `hindrance` says why it cannot take over from these proxies yet, or None.
        """
        if self._settings.other_proxies != WAIT:
            return frozenset()
        if not has_served:
            return await self._wait(hindrance)
        at_work = {sign.proxy for sign in await self._signs()} if unfinished else set()
        self._unfinished = frozenset(unfinished) & at_work
        return frozenset(unfinished) - at_work

    async def follow_rivals(self, restrain: Callable[[bool], None], remove: Remove) -> None:
        """Look for proxies that come later, until cancelled.

        `restrain` is told whether there is one. `remove` begins to delete what a rival has left that has ended for
        good. What was in the kernel before and has not gone since is no sign of a rival, unless the cluster wants this
        proxy here, as it does if kroute has been restarted beside it: kube-proxy's ports may be kroute's by now, so its
        fresh rules and sets have to show it. A proxy that is followed may write once more while its process ends:
        kube-router closes its port first.
        """
        if self._settings.other_proxies != WAIT:
            return
        known = await self._traces.now() - self._unfinished
        if known:
            known -= (await self._cluster.ask(ASK_AGAIN) or {}).keys()
        meant, until = self._cluster.before, self._clock() + ENDS_WITHIN
        while True:
            await asyncio.sleep(SERVING_LOOK)
            sign = next(iter(await self._signs(processes=None)), None)  # to read all of them takes milliseconds
            is_silent = sign is None
            traces = await self._traces.now()
            known &= traces
            fresh = traces - known
            if is_silent and fresh:
                sign = Sign(min(fresh), "it has written rules or sets")
            cluster = await self._cluster.ask(ASK_AGAIN) if sign is not None else None
            if sign is not None and cluster is not None:
                if sign.proxy in cluster:
                    meant, until = sign.proxy, math.inf
                elif sign.proxy == meant and is_silent and self._clock() < until:
                    known |= fresh
                    until = self._clock() + ENDS_WITHIN
                    remove(fresh)
            self._rival_is(sign or self._traces.enforcer(), restrain)

    def _rival_is(self, sign: Sign | None, restrain: Callable[[bool], None]) -> None:
        before, self.rival = self.rival, sign
        if sign is not None and (before is None or before.proxy != sign.proxy):
            log.error("rival.found", proxy=sign.proxy, why=sign.why)
            self._report(_rival_problem(sign))
        elif sign is None and before is not None:
            log.info("rival.gone", proxy=before.proxy)
            self._take_back(_rival_problem(before))
        if _writes_the_same(sign) != _writes_the_same(before):
            restrain(_writes_the_same(sign))

    async def _wait(self, hindrance: Hindrance) -> frozenset[str]:
        """Look until every other proxy has ended for good; returns those that may have left something."""
        silence = _Silence()
        while True:
            sign = next(iter(await self._signs()), None)
            if sign is not None:
                cluster = await self._cluster.ask(ASK_RARELY if self._cluster.tells else ASK_AGAIN)
                silence.broken_by(sign.proxy, is_meant=cluster is not None and sign.proxy in cluster)
            else:
                sign = await self._not_ended(silence)
            if sign is None:
                adopts = frozenset(OTHER_PROXIES.keys() & (silence.seen | await self._traces.now()))
                if adopts:
                    sign = await retry_when_exhausted("looking at what is left", partial(hindrance, adopts))
            self._waits(sign)
            if sign is None:
                self._cluster.before = silence.meant
                return adopts
            await asyncio.sleep(WAITING_LOOK)

    async def _not_ended(self, silence: "_Silence") -> Sign | None:
        """Why no sign of life does not mean that a proxy has ended for good; None if all have."""
        now = self._clock()
        since = silence.since = now if silence.since is None else silence.since
        cluster = await self._cluster.ask(ASK_AGAIN if since < now else 0)
        if cluster:
            silence.meant, why = next(iter(cluster.items()))
            return Sign(silence.meant, f"it is silent, but {why}", is_at_work=False)
        if silence.meant:
            unknown = "it is silent, and the API server does not say whether it is to come back"
            return Sign(silence.meant, unknown, is_at_work=False) if cluster is None else None
        silent = ", ".join(sorted(silence.seen | await self._traces.now()))
        rest = self._settings.take_over_after - (now - since)
        why = f"it is silent, and counts as ended in {rest:.0f} s"
        return Sign(silent, why, is_at_work=False) if silent and rest > 0 else None

    def _waits(self, sign: Sign | None) -> None:
        before, self.waits_for = self.waits_for, sign
        if sign is not None and (before is None or before.proxy != sign.proxy):
            log.warning("kroute.waiting", proxy=sign.proxy, why=sign.why, next_step=WAY_OUT)
            self._report(_problem(WAITING, sign, f"kroute waits and writes nothing; {WAY_OUT}"))
        elif sign is None and before is not None:
            log.info("kroute.waited", proxy=before.proxy)
            self._take_back(_problem(WAITING, before, ""))

    async def _signs(self, **where: object) -> list[Sign]:
        """The signs of proxies that serve Services."""
        found = await retry_when_exhausted(
            "looking for other service proxies", lambda: self._look(ours=self.held_ports, **where)
        )
        if not all(sign.is_proof for sign in found):
            await self._cluster.ask(ASK_RARELY)
        return [sign for sign in found if sign.is_proof or await self._serves(sign)]

    async def _serves(self, sign: Sign) -> bool:
        """Whether a program that may leave Services alone serves them on this node."""
        if self._cluster.last is not None:
            return sign.proxy in self._cluster.last
        return sign.proxy == KUBE_ROUTER and KUBE_ROUTER in await self._traces.now()


async def _proxies_of_node(api: "Api", node: str) -> dict[str, str]:
    # Few restarts ask. An import may fail for want of descriptors, so the caller tries again.
    from kroute.checks.cluster_proxies import proxies_of_node  # noqa: PLC0415

    return await proxies_of_node(api, node)


def _writes_the_same(rival: Sign | None) -> bool:
    return rival is not None and not rival.has_policies


def _rival_problem(sign: Sign) -> Problem:
    if sign.has_policies:
        return _problem(RIVAL_POLICIES, sign, "a packet must pass both: end one of them (docs/network-policies.md)")
    return _problem(RIVAL, sign, "both answer for the same addresses: remove one of them from this node")


def _problem(reason: str, sign: Sign, consequence: str) -> Problem:
    return Problem(reason, sign.proxy, f"{sign}: {consequence}")
