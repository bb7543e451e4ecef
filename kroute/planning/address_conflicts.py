"""Decide which of several Services has an address and port.

What the cluster has assigned comes before what somebody has only written: ClusterIPs, then node ports, then the
addresses of a LoadBalancer's status, then external IPs. Equal claims go by age (creationTimestamp), then by name. Age
alone would let an old Service squat on the addresses that newer ones are going to be assigned.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from kroute.model.addresses import canonical
from kroute.model.objects import ObjectKey, Service
from kroute.model.plan import VirtualServerKey
from kroute.planning.frontends import Frontend, Kind
from kroute.planning.service_addresses import load_balancer_ips

_RANKS = {Kind.CLUSTER_IP: 0, Kind.NODE_PORT: 1, Kind.LOAD_BALANCER_IP: 2, Kind.EXTERNAL_IP: 3}
"""The kinds of claims, the strongest first."""


class Claimant(NamedTuple):
    """A Service with its rank: the least claimant has the address. One without creationTimestamp ranks last.

    `kind` is the rank of what it claims, 0 the strongest.
    """

    kind: int
    undated: bool
    created: str
    key: ObjectKey

    @classmethod
    def of(cls, key: ObjectKey, service: Service) -> Self:
        """A Service by its age alone. Timestamps of the API are RFC 3339 in UTC, whose text sorts by age."""
        created = service.metadata.creation_timestamp
        return cls(0, created is None, created or "", key)


def ranked(service: Service, frontends: Iterable[Frontend]) -> dict[VirtualServerKey, int]:
    """What a Service claims, with the rank of each claim. An address in both fields counts as the load balancer's."""
    balanced = frozenset(map(canonical, load_balancer_ips(service)))
    return {it.key: _RANKS[Kind.LOAD_BALANCER_IP if _is_balanced(it, balanced) else it.kind] for it in frontends}


def _is_balanced(frontend: Frontend, balanced: frozenset[str | None]) -> bool:
    return frontend.kind is Kind.EXTERNAL_IP and frontend.key.address in balanced


class AddressClaims:
    """The addresses and ports that each Service claims, indexed both ways.

    A change costs time for one Service's claims.
    """

    def __init__(self) -> None:
        self._claimants: dict[VirtualServerKey, tuple[Claimant, ...]] = {}
        """The claimants of each address and port, the holder first."""
        self._claims: dict[ObjectKey, tuple[VirtualServerKey, ...]] = {}

    def claim(self, claimant: Claimant, new: Mapping[VirtualServerKey, int]) -> set[ObjectKey]:
        """Replace all claims of a Service by these, each with its rank.

        Returns the other Services whose plans this may change.
        """
        affected: set[ObjectKey] = set()
        for key in self._claims.pop(claimant.key, ()):
            if key not in new:
                affected |= self._settle(key, [it for it in self._claimants[key] if it.key != claimant.key])
        for key, kind in new.items():
            others = [it for it in self._claimants.get(key, ()) if it.key != claimant.key]
            affected |= self._settle(key, [*others, claimant._replace(kind=kind)])
        if new:
            self._claims[claimant.key] = tuple(new)
        return affected - {claimant.key}

    def withdraw(self, service: ObjectKey) -> set[ObjectKey]:
        """Drop all claims of a Service. Returns the other Services whose plans this may change."""
        return self.claim(Claimant(0, undated=True, created="", key=service), {})

    def held_by_others(self, service: ObjectKey) -> dict[VirtualServerKey, ObjectKey]:
        """The addresses and ports that the Service claims and does not get, each with the Service that has it."""
        holders = ((key, self._claimants[key][0].key) for key in self._claims.get(service, ()))
        return {key: holder for key, holder in holders if holder != service}

    def holder(self, key: VirtualServerKey) -> ObjectKey | None:
        """The Service that has this address and port, or None if no Service claims it."""
        claimants = self._claimants.get(key)
        return claimants[0].key if claimants else None

    def _settle(self, key: VirtualServerKey, claimants: list[Claimant]) -> set[ObjectKey]:
        """Set the claimants of an address and port. Returns all claimants, old and new, if the holder changes."""
        before, after = self._claimants.get(key, ()), tuple(sorted(claimants))
        if after:
            self._claimants[key] = after
        else:
            del self._claimants[key]
        if before and after and before[0].key == after[0].key:
            return set()
        return {it.key for it in before + after}
