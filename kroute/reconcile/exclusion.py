"""Networks whose virtual servers kroute does not clean up (`--exclude-cidrs`)."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address, ip_network


class Exclusion:
    """The excluded networks, with the meaning of kube-proxy's `excludeCIDRs` and kube-router's `--excluded-cidrs`.

    Services are served there as everywhere. A virtual server there that the ledger does not name is foreign, even if
    the ledger lacks lines and the address is on the dummy interface: kroute neither changes nor deletes it.
    """

    def __init__(self, cidrs: Iterable[str]) -> None:
        self._networks = [ip_network(cidr) for cidr in cidrs]
        self.covers = lru_cache(maxsize=1 << 16)(self._covers) if self._networks else self._covers_nothing

    def without(self, addresses: Iterable[str]) -> set[str]:
        """The addresses that are in no excluded network."""
        return {address for address in addresses if not self.covers(address)}

    def _covers(self, address: str) -> bool:
        parsed = ip_address(address)
        return any(parsed in network for network in self._networks)

    @staticmethod
    def _covers_nothing(address: str) -> bool:  # noqa: ARG004  stands in for the other one
        return False
