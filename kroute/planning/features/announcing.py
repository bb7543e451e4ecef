"""Which addresses of a Service this node announces to routers (`kroute run --announce`).

The settings (`--advertise-…-ip`) say what is announced, and a Service's annotations may say otherwise. An address to
which a traffic policy Local applies is announced only where a ready endpoint is: routers that divide clients over the
nodes would send some of them to nodes that do not serve them. With policy Cluster it is announced without endpoints,
too, so that clients are refused at once, and routers learn nothing new while all pods are replaced.
"""

import msgspec

from kroute.model.addresses import Family, family_of
from kroute.model.plan import ServicePlan
from kroute.planning.backend_slices import PortKey
from kroute.planning.endpoints import LOCAL
from kroute.planning.features.step import Backends, FeatureStep, PlanInputs
from kroute.planning.frontends import Frontend, Kind
from kroute.planning.options import Annotation, Applied, Options, names, switch_of
from kroute.settings import Settings


class _Asked(msgspec.Struct, frozen=True):
    """Whether the Service wants its addresses of one kind announced."""

    kind: Kind
    is_on: bool


class AnnouncingStep(FeatureStep):
    """Collects the addresses of one Service. `kinds` are the kinds of those that it wants announced."""

    def __init__(self, inputs: PlanInputs, kinds: frozenset[Kind]) -> None:
        spec = inputs.service.spec
        self._kinds = kinds
        self._is_local_outside = inputs.options.is_local or spec.external_traffic_policy == LOCAL
        self._is_local_inside = spec.internal_traffic_policy == LOCAL
        self._node_name = inputs.node.name
        self._merged = inputs.merged
        self._addresses: dict[str, frozenset[str]] = {}
        self._ready_on: dict[tuple[PortKey, Family], frozenset[str]] = {}

    def serve(self, frontend: Frontend, backends: Backends) -> Backends:
        """Note the address of a frontend that is a VIP: a node's own address needs no announcement."""
        if frontend.kind in self._kinds and frontend.is_bound:
            is_local = self._is_local_outside if frontend.is_external else self._is_local_inside
            nodes = self._nodes_with_ready(frontend) if is_local else frozenset[str]()
            if not is_local or self._node_name in nodes:
                address = frontend.key.address
                self._addresses[address] = self._addresses.get(address, nodes) & nodes
        return backends

    def amend(self, plan: ServicePlan) -> ServicePlan:
        """The plan with the addresses."""
        return msgspec.structs.replace(plan, announced=tuple(sorted(self._addresses.items())))

    def _nodes_with_ready(self, frontend: Frontend) -> frozenset[str]:
        """The nodes with a ready endpoint; one that terminates serves, but should get no new clients."""
        port, family = question = frontend.port, family_of(frontend.key.address)
        if (nodes := self._ready_on.get(question)) is None:
            endpoints = self._merged[family].backends.get(port, {}).values()
            nodes = frozenset([it.node_name for it in endpoints if it.is_ready and it.node_name is not None])
            self._ready_on[question] = nodes
        return nodes


def begin(inputs: PlanInputs) -> AnnouncingStep | None:
    """The step of a Service of which any address may be announced."""
    if not inputs.settings.announce:
        return None
    kinds = _by_settings(inputs.settings)
    kinds |= {asked.kind: asked.is_on for asked in inputs.options.asked if isinstance(asked, _Asked)}
    wanted = frozenset(kind for kind, is_on in kinds.items() if is_on)
    return AnnouncingStep(inputs, wanted) if wanted else None


def _by_settings(settings: Settings) -> dict[Kind, bool]:
    return {
        Kind.CLUSTER_IP: settings.advertise_cluster_ip,
        Kind.EXTERNAL_IP: settings.advertise_external_ip,
        Kind.LOAD_BALANCER_IP: settings.advertise_loadbalancer_ip,
    }


def _row(kind: Kind, word: str, addresses: str) -> Annotation:
    def apply(options: Options, value: str) -> Applied:
        is_on = switch_of(value) if value else None
        if is_on is None:
            return options, f"is neither on nor off; --advertise-{word} holds"
        return options.asking(_Asked(kind, is_on)), None

    return Annotation(
        names=names(f"advertise-{word}", f"service.advertise.{word.replace('-', '')}"),
        meaning=f"whether routers learn {addresses} from this node (--announce)",
        allowed="on, off",
        apply=apply,
    )


ANNOTATIONS = (
    _row(Kind.CLUSTER_IP, "cluster-ip", "the Service's ClusterIPs"),
    _row(Kind.EXTERNAL_IP, "external-ip", "the Service's external IPs"),
    _row(Kind.LOAD_BALANCER_IP, "loadbalancer-ip", "the addresses of the Service's load balancer"),
)
