"""Decide which of several Services gets an address and port: the oldest by creationTimestamp, then by name."""

from collections.abc import Iterable
from typing import NamedTuple, Self

from kroute.model.objects import ObjectKey, Service
from kroute.model.plan import VirtualServerKey


class Claimant(NamedTuple):
    """A Service with its rank: the least claimant gets the address. One without creationTimestamp ranks last."""

    undated: bool
    created: str
    key: ObjectKey

    @classmethod
    def of(cls, key: ObjectKey, service: Service) -> Self:
        """The rank of a Service. Timestamps of the API are RFC 3339 in UTC, whose text sorts by age."""
        created = service.metadata.creation_timestamp
        return cls(created is None, created or "", key)


class AddressClaims:
    """The addresses and ports that each Service claims, indexed both ways.

    A change costs time for one Service's claims.
    """

    def __init__(self) -> None:
        self._claimants: dict[VirtualServerKey, tuple[Claimant, ...]] = {}
        """The claimants of each address and port, the holder first."""
        self._claims: dict[ObjectKey, tuple[VirtualServerKey, ...]] = {}

    def claim(self, claimant: Claimant, keys: Iterable[VirtualServerKey]) -> set[ObjectKey]:
        """Replace all claims of a Service. Returns the other Services whose plans this may change."""
        new = dict.fromkeys(keys)
        affected: set[ObjectKey] = set()
        for key in self._claims.pop(claimant.key, ()):
            if key not in new:
                affected |= self._settle(key, [it for it in self._claimants[key] if it.key != claimant.key])
        for key in new:
            others = [it for it in self._claimants.get(key, ()) if it.key != claimant.key]
            affected |= self._settle(key, [*others, claimant])
        if new:
            self._claims[claimant.key] = tuple(new)
        return affected - {claimant.key}

    def withdraw(self, service: ObjectKey) -> set[ObjectKey]:
        """Drop all claims of a Service. Returns the other Services whose plans this may change."""
        return self.claim(Claimant(undated=True, created="", key=service), ())

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
