"""Table local of a fake kernel."""

import errno
from collections.abc import Sequence

from kroute.kernel.digest import Digest
from kroute.kernel.errors import Failure
from kroute.kernel.net.monitor import RouteEvent
from kroute.kernel.net.routes import IPV6_METRIC, LocalRoute, RouteChange, SetLocalRoute, in_the_way
from tests.fakes.client import FakeClient


class FakeRoutes(FakeClient):
    """Same shape as kroute.kernel.net.routes.Routes."""

    async def read(self, interface: str) -> dict[str, list[LocalRoute]]:
        self.check_open()
        link = self.kernel.links.get(interface)
        return {address: list(routes) for address, routes in link.routes.items() if routes} if link else {}

    async def digest(self, interface: str, sources: Sequence[str] = ()) -> Digest | None:
        self.check_open()
        link = self.kernel.links.get(interface)
        if link is None:
            return None
        routes = [route for of_address in link.routes.values() for route in of_address]
        found = [route.source for route in routes]
        return Digest(hash(tuple(routes)), tuple(map(found.count, sources)))

    async def write(self, interface: str, changes: Sequence[RouteChange]) -> list[Failure[RouteChange]]:
        self.check_open()
        failures = []
        for change in changes:
            number = self.kernel.refusal(change) or self._make(interface, change)
            if number:
                failures.append(Failure(change, number))
            else:
                self.kernel.writes.append(change)
        return failures

    def _make(self, interface: str, change: RouteChange) -> int:
        if interface not in self.kernel.links:
            return errno.ENODEV
        if ":" in change.address and not self.kernel.ipv6:
            return errno.EOPNOTSUPP
        return self._set(interface, change) if isinstance(change, SetLocalRoute) else self._delete(interface, change)

    def _set(self, interface: str, change: SetLocalRoute) -> int:
        if not self.kernel.has_address(change.source):
            return errno.EINVAL
        number = self._put(interface, change)
        for route in in_the_way(change, self.kernel.links[interface].routes.get(change.address, ())):
            self.kernel.drop_route(interface, route)
        return number

    def _put(self, interface: str, change: SetLocalRoute) -> int:
        routes = self.kernel.links[interface].routes.get(change.address, [])
        if ":" in change.address:
            desired = LocalRoute(change.address, change.source, IPV6_METRIC)
            self._replace(interface, desired, [route for route in routes if route.metric == IPV6_METRIC])
            kernel_route = LocalRoute(change.address, None, 0)
            if kernel_route in routes:
                self.kernel.drop_route(interface, kernel_route)
            return 0
        desired = LocalRoute(change.address, change.source, 0)
        if desired not in routes[1:]:
            self._replace(interface, desired, routes)
        return 0

    def _replace(self, interface: str, desired: LocalRoute, candidates: list[LocalRoute]) -> None:
        """Replace like NLM_F_REPLACE: the first candidate is removed; without one, the route is added."""
        link = self.kernel.links[interface]
        if not candidates:
            self.kernel.set_route(interface, desired, position=len(link.routes[desired.address]))
        elif candidates[0] != desired:
            position = link.routes[desired.address].index(candidates[0])
            link.routes[desired.address][position] = desired
            self.kernel.emit(RouteEvent(False, interface, desired))

    def _delete(self, interface: str, change: RouteChange) -> int:
        is_ipv6 = ":" in change.address
        for route in self.kernel.links[interface].routes.get(change.address, ()):
            matches = route.metric == IPV6_METRIC if is_ipv6 else change.source in {None, route.source}
            if matches:
                self.kernel.drop_route(interface, route)
                return 0
        return errno.ESRCH
