"""The addresses of a fake kernel."""

import errno
from collections.abc import Collection, Sequence

from kroute.kernel.digest import Digest
from kroute.kernel.errors import Failure
from kroute.kernel.net.addresses import AddressChange, BindAddress, InterfaceAddress, RenewAddress
from kroute.kernel.net.routes import LocalRoute
from tests.fakes.client import FakeClient
from tests.fakes.sysctl import disable_ipv6


class FakeAddresses(FakeClient):
    """Same shape as kroute.kernel.net.addresses.Addresses."""

    async def read(self, interface: str) -> set[str]:
        self.check_open()
        link = self.kernel.links.get(interface)
        return set(link.addresses) if link else set()

    async def digest(self, interface: str) -> Digest | None:
        self.check_open()
        link = self.kernel.links.get(interface)
        return Digest(hash(tuple(link.addresses.values())), (len(link.addresses),)) if link else None

    async def of_node(self, leave_out: Collection[str] = ()) -> list[InterfaceAddress]:
        self.check_open()
        links = [link for name, link in self.kernel.links.items() if name not in leave_out]
        return [address for link in links for address in link.addresses.values()]

    async def write(self, interface: str, changes: Sequence[AddressChange]) -> list[Failure[AddressChange]]:
        self.check_open()
        failures = []
        for change in changes:
            number = self.kernel.refusal(change) or self._make(interface, change)
            if number:
                failures.append(Failure(change, number))
            else:
                self.kernel.writes.append(change)
        return failures

    def _make(self, interface: str, change: AddressChange) -> int:
        is_ipv6 = ":" in change.address
        if number := self._refuses(interface, is_ipv6=is_ipv6):
            return number
        link = self.kernel.links[interface]
        bound = change.address in link.addresses
        if isinstance(change, RenewAddress):
            link.lifetimes[change.address] = change.lifetime
            if not bound:
                self.kernel.add_address(interface, change.address)
            return 0
        if not isinstance(change, BindAddress):
            if not bound:
                return errno.EADDRNOTAVAIL
            self.kernel.delete_address(interface, change.address)
            return 0
        if not bound:
            link.lifetimes[change.address] = change.lifetime
            self.kernel.add_address(interface, change.address, scope="global" if is_ipv6 else "link")
        kernel_route = LocalRoute(change.address, None, 0)
        if is_ipv6 and not change.keep_kernel_route and kernel_route in link.routes.get(change.address, ()):
            self.kernel.drop_route(interface, kernel_route)
        return errno.EEXIST if bound else 0

    def _refuses(self, interface: str, *, is_ipv6: bool) -> int:
        """The errno with which an interface refuses any address of a family; 0: it does not."""
        if interface not in self.kernel.links:
            return errno.ENODEV
        if is_ipv6 and not self.kernel.ipv6:
            return errno.EOPNOTSUPP
        return errno.EACCES if is_ipv6 and self.kernel.sysctls.get(disable_ipv6(interface)) == "1" else 0
