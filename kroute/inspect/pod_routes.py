"""What the agent knows of the ways to other nodes' pods, as its socket answers: `kroute show pod-routes`."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from kroute.inspect.agent_socket import Answer
from kroute.model.document import Document, View, encode

if TYPE_CHECKING:
    from kroute.controllers.pod_routes import PodRoutes

QUESTION = "pod-routes"
"""The answer is null if the agent connects no pods."""
DIRECT, TUNNEL = "direct", "tunnel"


class PodRouteView(View):
    """The route to a network of another node's pods. `by` is that node's address, or the tunnel's link."""

    network: str
    node: str
    way: str
    by: str
    in_kernel: bool


class PodRouteList(Document):
    """The planned routes to other nodes' pods. `problems` says what is left out, or refused by the kernel, and why."""

    kind: ClassVar[str] = "PodRouteList"

    items: list[PodRouteView]
    problems: list[str]

    def names(self) -> Iterator[str]:
        return (route.network for route in self.items)


def pod_routes_of(controller: "PodRoutes") -> PodRouteList:
    """The routes, by Nodes."""
    return PodRouteList(sorted(_views(controller), key=_order), [it.message for it in controller.problems])


def networks_by_state(controller: "PodRoutes") -> Mapping[str, int]:
    """How many networks of other nodes' pods are reached, and by which way, or are not."""
    counts = Counter({DIRECT: 0, TUNNEL: 0, "missing": 0, "left_out": len(controller.left_out)})
    counts.update(view.way if view.in_kernel else "missing" for view in _views(controller))
    return counts


def answer_about(controller: "PodRoutes | None") -> Answer:
    """The agent's answer."""

    async def answer(_about: str) -> bytes:
        return encode(pod_routes_of(controller)) if controller is not None else b"null"

    return answer


def _views(controller: "PodRoutes") -> Iterator[PodRouteView]:
    desired, applied = controller.routes, controller.routes.applied
    for network in desired.desired_keys():
        if (route := desired.desired(network)) is not None and not route.is_for_pods:
            node, *_ = desired.owners(network)
            way, by = (TUNNEL, route.link) if route.link else (DIRECT, route.gateway)
            yield PodRouteView(network, node.name, way, by, applied.get(network) == route)


def _order(view: PodRouteView) -> tuple[str, str]:
    return view.node, view.network
