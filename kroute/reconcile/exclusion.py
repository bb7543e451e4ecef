"""Addresses that kroute leaves alone altogether (`--exclude-cidrs`)."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address, ip_network

import msgspec

from kroute.model.plan import AddressSet, ServicePlan, SetEntry


class Exclusion:
    """The networks in which somebody else has the say: nothing with such an address is made, changed or deleted."""

    def __init__(self, cidrs: Iterable[str]) -> None:
        self._networks = [ip_network(cidr) for cidr in cidrs]
        self.covers = lru_cache(maxsize=1 << 16)(self._covers) if self._networks else self._covers_nothing

    def apply(self, plan: ServicePlan) -> ServicePlan:
        """The plan without its excluded addresses; the plan itself if it has none."""
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
        """Whether the entry is about an excluded address. That of a hairpin is a pod's, whatever Service it serves."""
        return entry.set is not AddressSet.HAIRPIN and self.covers(str(entry.element[0]))

    def _covers(self, address: str) -> bool:
        parsed = ip_address(address)
        return any(parsed in network for network in self._networks)

    @staticmethod
    def _covers_nothing(address: str) -> bool:  # noqa: ARG004  stands in for the other one
        return False
