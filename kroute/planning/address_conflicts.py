"""Decide which of several Services has an address and port.

What the cluster has assigned comes before what somebody has only written: ClusterIPs, then node ports, then the
addresses of a LoadBalancer's status, then external IPs. Equal claims go by age (creationTimestamp), then by name. Age
alone would let an old Service squat on the addresses that newer ones are going to be assigned.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Self

from kroute.model.addresses import canonical
from kroute.model.objects import ObjectKey, Service
from kroute.model.plan import Problem, VirtualServerKey
from kroute.planning.address_owners import load_balancer_ips
from kroute.planning.frontends import Frontend, Frontends, Kind

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
    return {
        frontend.key: _RANKS[Kind.LOAD_BALANCER_IP if _is_balanced(frontend, balanced) else frontend.kind]
        for frontend in frontends
    }


def _is_balanced(frontend: Frontend, balanced: frozenset[str | None]) -> bool:
    return frontend.kind is Kind.EXTERNAL_IP and frontend.key.address in balanced


class AddressClaims:
    """The addresses and ports that each Service claims, indexed both ways.

    A claim costs the logarithm of the number of claimants, however many share an address.
    """

    def __init__(self) -> None:
        self._claimants: dict[VirtualServerKey, list[Claimant]] = {}
        """The claimants of each address and port, sorted, so the holder first."""
        self._claims: dict[ObjectKey, tuple[Claimant, tuple[VirtualServerKey, ...], tuple[int, ...]]] = {}
        self._renamed: dict[VirtualServerKey, None] = {}

    def claim(self, claimant: Claimant, new: Mapping[VirtualServerKey, int]) -> set[ObjectKey]:
        """Replace all claims of a Service by these, each with its rank.

        Returns the other Services to which or from which an address moves by this.
        """
        service = claimant.key
        known, keys, kinds = self._claims.pop(service, (claimant, (), ()))
        if new:
            self._claims[service] = (claimant, tuple(new), tuple(new.values()))
        old = dict(zip(keys, kinds, strict=True)) if keys else {}
        moved: set[ObjectKey] = set()
        for key, kind in old.items():
            if known != claimant or new.get(key) != kind:
                added = _of_kind(claimant, new[key]) if key in new else None
                moved.update(self._settle(key, _of_kind(known, kind), added))
        for key, kind in new.items():
            if key not in old:
                moved.update(self._settle(key, None, _of_kind(claimant, kind)))
        moved.discard(service)
        return moved

    def withdraw(self, service: ObjectKey) -> set[ObjectKey]:
        """Drop all claims of a Service. Returns the other Services to which an address moves by this."""
        return self.claim(Claimant(0, undated=True, created="", key=service), {})

    def take_losers(self) -> set[ObjectKey]:
        """The Services whose address has another holder than when this was asked last.

        Their plans have to name it. They are not told with each move: of many that share an address all would be
        planned again for each one that comes or goes.
        """
        renamed, self._renamed = self._renamed, {}
        return {claimant.key for key in renamed for claimant in self._claimants.get(key, ())}

    def held_by_others(self, service: ObjectKey) -> dict[VirtualServerKey, ObjectKey]:
        """The addresses and ports that the Service claims and does not get, each with the Service that has it."""
        if service not in self._claims:
            return {}
        _, keys, _ = self._claims[service]
        return {key: holder for key in keys if (holder := self._claimants[key][0].key) != service}

    def claimed(self, service: ObjectKey, frontends: Frontends) -> Frontends:
        """The frontends without those that the Service has not claimed yet: another Service may have the address."""
        _, keys, _ = self._claims.get(service, (None, (), ()))
        claimed = frozenset(keys)
        served = [frontend for frontend in frontends.served if frontend.key in claimed]
        return frontends if len(served) == len(frontends.served) else frontends._replace(served=tuple(served))

    def holder(self, key: VirtualServerKey) -> ObjectKey | None:
        """The Service that has this address and port, or None if no Service claims it."""
        claimants = self._claimants.get(key)
        return claimants[0].key if claimants else None

    def _settle(self, key: VirtualServerKey, gone: Claimant | None, new: Claimant | None) -> Collection[ObjectKey]:
        """Take a claimant of an address and port away, add one. Returns both holders if the address moves."""
        claimants = self._claimants.get(key)
        if claimants is None:
            if new is not None:
                self._claimants[key] = [new]
            return ()
        before = claimants[0].key
        if gone is not None:
            del claimants[bisect_left(claimants, gone)]
        if new is not None:
            insort(claimants, new)
        if not claimants:
            del self._claimants[key]
            return ()
        after = claimants[0].key
        if before == after:
            return ()
        self._renamed[key] = None
        return (before, after)


def _of_kind(claimant: Claimant, kind: int) -> Claimant:
    return claimant if claimant.kind == kind else claimant._replace(kind=kind)


def conflict(key: VirtualServerKey, holder: ObjectKey) -> Problem:
    """The Problem of a Service that asks for an address and port that `holder` has."""
    rest = f"is not served for this Service: Service {holder} has it. Change one of the two."
    return Problem.about("AddressConflict", f"address {key}", rest)
