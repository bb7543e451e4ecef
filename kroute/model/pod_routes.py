"""What is planned for the pods of another node: the routes to them."""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import msgspec

from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem

LEFT_OUT = "PodNetworkLeftOut"
"""The reason of the problem of a network that does not count."""


class PlannedRoute(NamedTuple):
    """A route to pods: to their node's address `node`, in a tunnel if `is_tunnelled`, from this node's `source`."""

    node: str
    source: str
    is_tunnelled: bool


class NodeRoutes(msgspec.Struct, frozen=True):
    """The routes to the pods of one other node by network, and what is wrong with its Node. Without Node: none."""

    generation: ClassVar[int] = 0

    key: ObjectKey
    routes: Mapping[str, PlannedRoute] = {}
    problems: tuple[Problem, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is no route."""
        return not self.routes
