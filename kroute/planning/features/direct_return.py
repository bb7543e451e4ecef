"""Decide which addresses of a Service its pods answer themselves (`kroute.io/direct-return`), and say why not.

A tunnel changes nothing of the packet inside. So the pod must listen on the Service's own port, and have an address of
its own beside the node's. All nodes must decide alike, since the node that a client reaches tunnels to pods of others:
what is looked at is the same for all, but for the setting. `kroute.controllers.direct_return` prepares the pods.
"""

import msgspec

from kroute.base.forwarding import TUNNEL
from kroute.model.plan import AddressSet, Problem, Protocol, ServicePlan, TunnelEnd
from kroute.planning.endpoints import LOCAL
from kroute.planning.features.step import Backends, FeatureStep, PlanInputs
from kroute.planning.frontends import Frontend, Kind
from kroute.planning.options import Annotation, Applied, Options, names

_KINDS = frozenset({Kind.EXTERNAL_IP, Kind.LOAD_BALANCER_IP})
_REASON = "NoDirectReturn"
_NOT_OBEYED = " is not obeyed: "
_BY_TRANSLATION = "; nodes serve by address translation there"


class DirectReturnStep(FeatureStep):
    """Direct return of one Service whose annotation asks for it. Everything that prevents it is one Problem.

    `vips` are the addresses of which at least one port is answered directly.
    """

    def __init__(self, inputs: PlanInputs) -> None:
        self.vips: set[str] = set()
        self._inputs = inputs
        self._ends: set[TunnelEnd] = set()
        self._reasons: dict[str, None] = {}
        is_local = inputs.options.is_local or inputs.service.spec.external_traffic_policy == LOCAL
        self._is_possible = not self._refused(
            "this node's agent runs without --direct-return" if not inputs.settings.direct_return else "",
            "externalTrafficPolicy is Local, by which nodes answer" if is_local else "",
        )

    def serve(self, frontend: Frontend, backends: Backends) -> Backends:
        """What pods answer themselves is not masqueraded, since the answers do not come back through this node."""
        if not self._is_possible or frontend.kind not in _KINDS or self._prevents(frontend, backends):
            return backends
        self.vips.add(frontend.key.address)
        self._ends.update(TunnelEnd(real.address, frontend.key.address) for real in backends.on_this_node)
        sets = [AddressSet.EXTERNAL_LOCAL if one is AddressSet.EXTERNAL else one for one in backends.sets]
        return backends._replace(sets=tuple(sets), on_this_node=(), is_direct=True)

    def finish(self) -> None:
        """Report one Problem for all reasons: which of them there are may differ from port to port."""
        if not self._reasons:
            return
        first, *more = self._reasons
        also = f" (and {len(more)} more reasons)" if more else ""
        written = _ROW.written_in(self._inputs.service.metadata.annotations or {})
        subject = f"annotation {written or _ROW.name}"
        message = f"{subject}{_NOT_OBEYED}{first}{also}{_BY_TRANSLATION}. See docs/direct-return.md."
        self._inputs.problems.append(Problem(_REASON, subject, message))

    def amend(self, plan: ServicePlan) -> ServicePlan:
        """The VIPs are on no link; with this node's pods that answer them."""
        return msgspec.structs.replace(
            plan,
            vips=tuple([vip for vip in plan.vips if vip.address not in self.vips]),
            tunnel_ends=tuple(sorted(self._ends)),
            direct_vips=tuple(sorted(self.vips)),
        )

    def explain(self, frontend: Frontend, plan: ServicePlan) -> str:
        """Whether its packets go in a tunnel, and why so."""
        return forwarding_of(frontend, plan)

    def _prevents(self, frontend: Frontend, backends: Backends) -> bool:
        """Whether anything prevents that pods answer this frontend's clients."""
        key, owners = frontend.key, self._inputs.owners
        others = [real for real in backends.real_servers if real.port != key.port]
        on_hosts = next((real.address for real in backends.real_servers if self._is_host(real.address)), "")
        # Where it is not known on which node one is, nobody would prepare it.
        has_unknown = any(traits.node_name is None for _, traits in backends.chosen)
        sharing = owners.others_naming(key.address, self._inputs.service.key)
        return self._refused(
            f"{key} is this node's own address" if not frontend.is_bound else "",
            f"{key} is SCTP" if key.protocol is Protocol.SCTP else "",
            f"{key} leads to port {others[0].port}, and a tunnel translates no port" if others else "",
            f"endpoint {on_hosts} is a node (hostNetwork)" if on_hosts else "",
            "an endpoint has no nodeName" if has_unknown else "",
            f"Service {sharing[0]} names {key.address} too" if sharing else "",
        )

    def _is_host(self, address: str) -> bool:
        return address in self._inputs.node.own or bool(self._inputs.owners.nodes_with(address))

    def _refused(self, *reasons: str) -> bool:
        found = [reason for reason in reasons if reason]
        self._reasons.update(dict.fromkeys(found[:1]))
        return bool(found)


class _TunnelAsked(msgspec.Struct, frozen=True):
    """The Service asks for direct return."""


def begin(inputs: PlanInputs) -> DirectReturnStep | None:
    """The step of a Service that asks for direct return."""
    return DirectReturnStep(inputs) if inputs.options.of(_TunnelAsked) is not None else None


def forwarding_of(frontend: Frontend, plan: ServicePlan) -> str:
    """How packets to a frontend reach the pods, and why so; empty unless the Service asks for direct return there."""
    if frontend.kind not in _KINDS:
        return ""
    if any(server.method == TUNNEL for server in plan.virtual_servers if server.key == frontend.key):
        return f"in a tunnel to the pod, which answers the client itself (annotation {_ROW.name})"
    for problem in plan.problems:
        if problem.reason == _REASON:
            why = problem.message.partition(_NOT_OBEYED)[2].partition(_BY_TRANSLATION)[0]
            return f"by address translation, not in a tunnel: {why}"
    return ""


def _apply(options: Options, value: str) -> Applied:
    if value != "tunnel":
        return options, "is no way of direct return; nodes serve by address translation"
    return options.asking(_TunnelAsked()), None


_ROW = Annotation(
    names=names("direct-return", "service.dsr"),
    meaning="the Service's pods answer the clients of its external addresses themselves (--direct-return)",
    allowed="tunnel",
    apply=_apply,
)
ANNOTATIONS = (_ROW,)
