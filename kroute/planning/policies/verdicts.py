"""What policies say of one connection, and by which of their rules, as `kroute explain` shows it."""

from collections.abc import Iterable
from itertools import islice

import msgspec

from kroute.model.document import View
from kroute.model.policy_plan import Direction

MOST_NAMES = 20
"""Policies or rules that a ruling names."""


class Ruling(View):
    """What policies say of a connection in one direction, about the pod at that end.

    `pod` is NAMESPACE/NAME, `node` the name of its node. Only that node judges: if it is not this one (`is_here`), no
    policy is named. `isolated_by` are NetworkPolicies, if these were asked. `allowed_by` and `refused_by` are policies
    each with a rule (`shop/clients ingress[0]`); of ClusterNetworkPolicies it is the one that decided. Of each, the
    first MOST_NAMES are named. `exempt` says why no NetworkPolicy is asked, or is empty.
    """

    direction: Direction
    pod: str
    node: str
    is_here: bool
    isolated_by: list[str]
    allowed_by: list[str]
    exempt: str = ""
    refused_by: list[str] = msgspec.field(default_factory=list)

    @property
    def is_refused(self) -> bool:
        """Whether this node drops the connection's packets."""
        return bool(self.refused_by or (self.isolated_by and not self.allowed_by and not self.exempt))


class Judgement(View):
    """What policies say of a connection to an address and port of a pod or of anybody else, of the ends that are pods'.

    A connection has to be allowed by all `rulings`.
    """

    source: str
    destination: str
    port: int
    rulings: list[Ruling]

    @property
    def is_refused(self) -> bool:
        """Whether this node drops the connection's packets."""
        return any(ruling.is_refused for ruling in self.rulings)


def first_of(names: Iterable[str]) -> list[str]:
    """As many of the names as a ruling names."""
    return list(islice(names, MOST_NAMES))
