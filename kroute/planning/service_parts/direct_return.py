"""Decide which addresses of a Service its pods answer themselves (`kroute.io/direct-return`), and say why not.

A tunnel changes nothing of the packet inside. So the pod must listen on the Service's own port, and have an address of
its own beside the node's. All nodes must decide alike, since the node that a client reaches tunnels to pods of others:
what is looked at is the same for all, but for the setting.
"""

from collections.abc import Iterable, Sequence

from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Service
from kroute.model.plan import Problem, Protocol, RealServer, ServicePlan, TunnelEnd
from kroute.planning.address_owners import AddressOwners
from kroute.planning.annotations.options import Options
from kroute.planning.annotations.table import as_written
from kroute.planning.endpoints import LOCAL
from kroute.planning.frontends import Frontend, Kind
from kroute.settings import Settings

_KINDS = frozenset({Kind.EXTERNAL_IP, Kind.LOAD_BALANCER_IP})
_REASON = "NoDirectReturn"
_NAME = "kroute.io/direct-return"
_NOT_OBEYED = " is not obeyed: "
_BY_TRANSLATION = "; nodes serve by address translation there"


class DirectReturn:
    """Direct return of one Service whose annotation asks for it. Everything that prevents it is one Problem.

    `vips` are the addresses of which at least one port is answered directly.
    """

    def __init__(
        self, service: Service, options: Options, node: NodeFacts, settings: Settings, owners: AddressOwners | None
    ) -> None:
        self.vips: set[str] = set()
        self._service = service
        self._node = node
        self._owners = owners or AddressOwners()
        self._ends: set[TunnelEnd] = set()
        self._reasons: dict[str, None] = {}
        self._is_possible = not self._refused(
            "this node's agent runs without --direct-return" if not settings.direct_return else "",
            "externalTrafficPolicy is Local, by which nodes answer" if _is_local(service, options) else "",
        )

    def answers(
        self, frontend: Frontend, real_servers: Sequence[RealServer], local: Sequence[RealServer], *, has_unknown: bool
    ) -> bool:
        """Whether pods answer this frontend's clients. `local` are the real servers on this node.

        `has_unknown`: of one it is not known on which node it is, so nobody would prepare it.
        """
        if not self._is_possible or frontend.kind not in _KINDS:
            return False
        key = frontend.key
        others = [real for real in real_servers if real.port != key.port]
        on_hosts = next((it.address for it in real_servers if self._is_host(it.address)), "")
        sharing = self._owners.others_naming(key.address, self._service.key)
        if self._refused(
            f"{key} is this node's own address" if not frontend.is_bound else "",
            f"{key} is SCTP" if key.protocol is Protocol.SCTP else "",
            f"{key} leads to port {others[0].port}, and a tunnel translates no port" if others else "",
            f"endpoint {on_hosts} is a node (hostNetwork)" if on_hosts else "",
            "an endpoint has no nodeName" if has_unknown else "",
            f"Service {sharing[0]} names {key.address} too" if sharing else "",
        ):
            return False
        self.vips.add(key.address)
        self._ends.update(TunnelEnd(it.address, key.address) for it in local)
        return True

    @property
    def tunnel_ends(self) -> tuple[TunnelEnd, ...]:
        """This node's pods with the VIPs that they answer."""
        return tuple(sorted(self._ends))

    @property
    def problems(self) -> Iterable[Problem]:
        """One for all reasons: which of them there are may differ from port to port."""
        if not self._reasons:
            return
        first, *more = self._reasons
        also = f" (and {len(more)} more reasons)" if more else ""
        subject = f"annotation {as_written(_NAME, self._service.metadata.annotations)}"
        message = f"{subject}{_NOT_OBEYED}{first}{also}{_BY_TRANSLATION}. See docs/direct-return.md."
        yield Problem(_REASON, subject, message)

    def _is_host(self, address: str) -> bool:
        return address in self._node.own or bool(self._owners.nodes_with(address))

    def _refused(self, *reasons: str) -> bool:
        found = [it for it in reasons if it]
        self._reasons.update(dict.fromkeys(found[:1]))
        return bool(found)


def forwarding_of(frontend: Frontend, plan: ServicePlan) -> str:
    """How packets to a frontend reach the pods, and why so; empty unless the Service asks for direct return there."""
    if frontend.kind not in _KINDS:
        return ""
    if any(it.is_tunnelled for it in plan.virtual_servers if it.key == frontend.key):
        return f"in a tunnel to the pod, which answers the client itself (annotation {_NAME})"
    for problem in plan.problems:
        if problem.reason == _REASON:
            why = problem.message.partition(_NOT_OBEYED)[2].partition(_BY_TRANSLATION)[0]
            return f"by address translation, not in a tunnel: {why}"
    return ""


def _is_local(service: Service, options: Options) -> bool:
    return options.is_local or service.spec.external_traffic_policy == LOCAL
