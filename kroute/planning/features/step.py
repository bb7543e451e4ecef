"""What a feature does in the plan of a Service that uses it, and what it may read."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Service
from kroute.model.plan import AddressSet, Problems, RealServer, ServicePlan, SetEntry, VirtualServer
from kroute.model.steps import Steps
from kroute.planning.address_owners import AddressOwners
from kroute.planning.endpoints import Chosen, MergedSlices
from kroute.planning.frontends import Frontend
from kroute.planning.options import Options
from kroute.planning.weight_facts import WeightFacts
from kroute.settings import Settings


class PlanInputs(msgspec.Struct):
    """What features read of the Service that is planned. `problems` are those of its plan.

    `balanced` are the families of its load balancer's addresses. `facts` are what its real servers are weighed by.
    `merged` are its slices; empty where no frontend is served.
    """

    service: Service
    node: NodeFacts
    settings: Settings
    options: Options
    problems: Problems
    balanced: Collection[Family]
    facts: WeightFacts | None
    owners: AddressOwners
    merged: Mapping[Family, MergedSlices]


class Backends(NamedTuple):
    """The endpoints that serve a frontend, and the sets that contain its address and port.

    `real_servers` are the endpoints with their weights, in order, and `on_this_node` some of them; both are empty till
    there is room for them. `lacks_local`: policy Local leaves none of the endpoints that there are. `is_direct`: the
    real servers answer the clients themselves. `leaving`: as in VirtualServer.
    """

    chosen: Chosen
    sets: tuple[AddressSet, ...]
    real_servers: tuple[RealServer, ...] = ()
    on_this_node: tuple[RealServer, ...] = ()
    lacks_local: bool = False
    is_direct: bool = False
    leaving: tuple[tuple[str, int], ...] = ()


class FeatureStep:
    """What one feature does for one Service. Each method changes nothing, unless the feature has its own.

    They are called in the order in which they stand here. What takes long is done in steps.
    """

    __slots__ = ()

    def prepare(self) -> Steps[None]:
        """Do what must be known before the first frontend."""
        yield from ()

    def refuses(self, _frontend: Frontend) -> bool:
        """Whether this frontend is not served."""
        return False

    def weigh(self, _chosen: Chosen, servers: tuple[RealServer, ...]) -> Steps[tuple[RealServer, ...]]:
        """The real servers of the chosen endpoints with their weights, in the same order."""
        yield from ()
        return servers

    def serve(self, _frontend: Frontend, backends: Backends) -> Backends:
        """What serves a frontend."""
        return backends

    def virtual_server(self, server: VirtualServer) -> VirtualServer:
        """The virtual server of a frontend."""
        return server

    def entries(self, _frontend: Frontend) -> Iterable[SetEntry]:
        """Set entries of a frontend beside those that every frontend has."""
        return ()

    def finish(self) -> None:
        """Report what was found on the way."""

    def amend(self, plan: ServicePlan) -> ServicePlan:
        """The plan as a whole."""
        return plan

    def explain(self, _frontend: Frontend, _plan: ServicePlan) -> str:
        """How packets to a frontend reach the pods, and why so, if it is not by address translation for no reason."""
        return ""

    def explain_weights(self, _chosen: Chosen) -> Steps[Mapping[RealServer, str]]:
        """The weight of each real server in words."""
        yield from ()
        return {}
