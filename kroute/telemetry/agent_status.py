"""The answer of a running agent to `kroute status`."""

from collections.abc import Iterator

from kroute import __version__
from kroute.inspect import shared_state
from kroute.inspect.shared_state import SharedState
from kroute.inspect.status import (
    WITH_DIGEST,
    PolicyCounts,
    Source,
    State,
    Status,
    StatusProblem,
    allocator_problems,
    eligibility_problems,
    kernel_problems,
    manifest_problems,
    plan_problems,
    pod_network_problems,
    policy_problems,
    proxy_problems,
    rfc3339,
    routing_problems,
    served,
    set_problems,
    source_problems,
    with_problems,
    work_problems,
)
from kroute.kernel.errors import KernelError
from kroute.model.document import encode
from kroute.model.objects import EndpointSlice, Service
from kroute.settings.text import without_user
from kroute.telemetry.agent_parts import AgentParts
from kroute.telemetry.kernel_reader import KernelReader
from kroute.telemetry.shared_answers import SharedAnswers
from kroute.telemetry.statistics import STARTED, Statistics
from kroute.watchers.kubernetes.errors import denial


class AgentStatus:
    """Collects the status of one agent."""

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        services, limit = parts.broadcaster.services, parts.settings.metrics_services
        self.kernel = KernelReader(lambda: list(services.values()), limit, parts.open_ipvs)
        self._shared: SharedAnswers[None, SharedState] = SharedAnswers(
            lambda _question: shared_state.shared_state(parts.catalog, services)
        )

    async def answer(self, about: str) -> bytes:
        """The status in JSON, with the digest if `about` asks for it."""
        return encode(await self.status(with_digest=about == WITH_DIGEST))

    async def answer_shared(self, _about: str) -> bytes:
        """What every node should plan, in JSON."""
        return await shared_state.encoded(await self._shared.get(None))

    async def status(self, *, with_digest: bool = False) -> Status:
        """The status now. The kernel's counts may be some seconds old."""
        parts = self._parts
        counted, plans, waits_for = parts.statistics(), parts.broadcaster.plans, parts.ownership.waits_for
        source, unreadable, total = self._source(counted), "", None
        try:
            total = (await self.kernel.summary()).total
        except KernelError as error:
            unreadable = str(error)
        resynced = [each for each in counted.controllers.values() if each.last_resync]
        found = Status(
            node=parts.settings.node_name,
            state=State.WAITING if waits_for else State.READY if parts.controllers.is_live else State.STARTING,
            version=__version__,
            started=rfc3339(STARTED),
            firewall=parts.settings.firewall,
            served=served(parts.broadcaster.services.values(), total),
            pending=self._pending(counted),
            generation=max((plan.generation for plan in plans), default=0),
            last_resync=rfc3339(min((each.last_resync for each in resynced), default=0)),
            last_look=rfc3339(min((each.last_look for each in resynced), default=0)),
            source=source,
            policies=self._policies(),
            allocator=parts.allocator() if parts.allocator is not None else None,
            shared=await shared_state.digest(await self._shared.get(None)) if with_digest else "",
        )
        denials = [denial(kind, watch.denied_with) for kind, watch in counted.watches.items() if watch.denied_with]
        return with_problems(
            found,
            [
                *self._proxy_problems(),
                *source_problems(source, denials),
                *manifest_problems(parts.faults()),
                *work_problems([] if waits_for else parts.controllers.complaints(), counted.controllers),
                *kernel_problems(found.served, unreadable, is_settled=found.is_settled),
                *eligibility_problems(parts.changes.ineligible),
                *set_problems(parts.controllers.set_fills()),
                *plan_problems(plans),
                *allocator_problems(found.allocator),
                *self._optional_problems(),
            ],
        )

    def _proxy_problems(self) -> Iterator[StatusProblem]:
        waits_for, rival = self._parts.ownership.waits_for, self._parts.ownership.rival
        has_policies = rival is not None and rival.has_policies
        return proxy_problems(str(waits_for or ""), str(rival or ""), has_policies=has_policies)

    def _optional_problems(self) -> Iterator[StatusProblem]:
        optional, policies = self._parts.controllers.optional, self._parts.policies
        if policies is not None:
            yield from policy_problems(policies.catalog.problems)
        if optional.pod_routes is not None:
            yield from pod_network_problems(optional.pod_routes.problems)
        if (announcing := optional.announcing) is not None:
            yield from routing_problems(announcing.problems, announcing.withdraws)

    def _pending(self, counted: Statistics) -> int:
        """How many Services have changes that are on their way. At least 1 while a change of the node is."""
        catalog, changes = self._parts.catalog, self._parts.changes
        read = (changes.pending(kind) for kind in (Service, EndpointSlice))
        return max(int(catalog.has_marked), counted.latency.waiting, *read, *(queue.depth for queue in counted.queues))

    def _policies(self) -> PolicyCounts | None:
        if (enforced := self._parts.policies) is None:
            return None
        return PolicyCounts(enforced.isolated_pods(), len(enforced.catalog.problems))

    def _source(self, counted: Statistics) -> Source:
        if self._parts.settings.manifests is not None:
            return Source("manifests", self._parts.catalog.ready)
        watches = counted.watches
        return Source(
            "api",
            connected=bool(watches) and not any(watch.is_away for watch in watches.values()),
            objects={kind: watch.objects for kind, watch in watches.items()},
            resource_versions={kind: watch.resource_version for kind, watch in watches.items()},
            server=without_user(counted.api.server),
        )
