"""Addresses that kroute leaves alone (`--exclude-cidrs`)."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address, ip_network

import msgspec

from kroute.model.plan import AddressSet, ServicePlan, SetEntry


class Exclusion:
    """The excluded networks. kroute makes, changes and deletes nothing with an address in them."""

    def __init__(self, cidrs: Iterable[str]) -> None:
        self._networks = [ip_network(cidr) for cidr in cidrs]
        self.covers = lru_cache(maxsize=1 << 16)(self._covers) if self._networks else self._covers_nothing

    def apply(self, plan: ServicePlan) -> ServicePlan:
        """The plan without its excluded addresses; the same object if it has none."""
        if not any(self.covers(server.key.address) for server in plan.virtual_servers):
            return plan
        servers = tuple(server for server in plan.virtual_servers if not self.covers(server.key.address))
        return msgspec.structs.replace(
            plan,
            virtual_servers=servers,
            vips=tuple(vip for vip in plan.vips if not self.covers(vip.address)),
            set_entries=tuple(entry for entry in plan.set_entries if servers and not self._forbids(entry)),
        )

    def _forbids(self, entry: SetEntry) -> bool:
        """Whether the entry has an excluded address. A HAIRPIN entry has a pod's address, not a Service's: it stays."""
        return entry.set is not AddressSet.HAIRPIN and self.covers(str(entry.element[0]))

    def _covers(self, address: str) -> bool:
        parsed = ip_address(address)
        return any(parsed in network for network in self._networks)

    @staticmethod
    def _covers_nothing(address: str) -> bool:  # noqa: ARG004  stands in for the other one
        return False
