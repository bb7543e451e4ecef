"""Plan which address each Service of type LoadBalancer gets (`--allocate-load-balancer-ips`). Pure.

The status of the Services is the truth: an address that one has stays with it, whatever else changes, until the Service
is deleted, is no longer of the type, asks for another address, or no longer has the family. An address that any Service
has, also one that is not ours, is free for no other, unless both share it by key. So the plan is the same after a
restart, and for each allocator.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from ipaddress import ip_network
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from kroute.model.addresses import Family, canonical, family_of
from kroute.model.objects import ObjectKey, Service, ServiceSpec
from kroute.model.plan import Problem, quoted
from kroute.model.steps import Steps, sort
from kroute.planning.address_owners import MOST_ADDRESSES, cluster_ips
from kroute.planning.endpoints import LOCAL, external_policy
from kroute.planning.external_addresses import is_in
from kroute.planning.features.asked_addresses import ADDRESSES, SHARING, AskedAddresses, SharingKey
from kroute.planning.options import alone
from kroute.settings import NO_CLASS, Settings

MOST_CANDIDATES = 1 << 18
"""Addresses of each family that are given out: the first ones of the ranges, an IPv4 network of /14."""
MOST_SHARED = 100
"""Services that may have one address, and addresses with one key that are tried before a free one."""
_UNITS_TO_READ = 20
"""What reading a Service takes. It is a step by itself: anybody may write one with thousands of addresses and ports."""
_REQUIRE_BOTH = "RequireDualStack"
_REASON = "NoLoadBalancerAddress"


class BalancedSpec(ServiceSpec, frozen=True):
    """`spec` with what only the allocator reads."""

    load_balancer_class: str | None = None
    load_balancer_ip: str = msgspec.field(name="loadBalancerIP", default="")
    ip_families: tuple[str, ...] | None = None
    ip_family_policy: str | None = None
    selector: dict[str, str] | None = None


class BalancedService(Service, frozen=True):
    """A Service as the allocator reads it, of any type."""

    spec: BalancedSpec = BalancedSpec()


class Assignment(NamedTuple):
    """The addresses that a Service is to have in its status, in place of those that are there."""

    service: BalancedService
    addresses: tuple[str, ...]


class Allocation(NamedTuple):
    """What is to be written, and the problems of the Services that do not get what they ask for.

    `fills` says of each family how many addresses of the ranges are in use, and how many there are to give out.
    """

    assignments: list[Assignment]
    problems: list[tuple[ObjectKey, Problem]]
    fills: Mapping[Family, tuple[int, int]]


def allocating(
    services: Collection[BalancedService],
    reserved: Mapping[str, Collection[str]],
    settings: Settings,
    refusal: Callable[[str], str],
) -> Steps[Allocation]:
    """Plan for all Services of the cluster, in steps.

    `reserved` has, by a Service's uid, addresses that its status may have soon. `refusal` says why nodes do not serve
    an address as a VIP, in sentences of which it is the subject; empty if they do.
    """
    holders = _Holders()
    turns = []
    for service in services:
        soon = reserved.get(service.metadata.uid, ())
        claimant = _Claimant(service.key, _sharing(service))
        for address in chain(_in_status(service), soon):
            holders.add(address, claimant)
        for address in _external(service, settings):
            holders.add(address, claimant._replace(sharing=None))
        if (present := _present(service)) is not None and _is_ours(service, settings):
            has = {family_of(address): address for address in soon} | present
            asked = _asked(service)
            rank = not asked, service.metadata.creation_timestamp or "", service.key
            turns.append(_Turn(rank, service, claimant, has, asked))
        yield _UNITS_TO_READ
    allocator = _Allocator(settings, holders, refusal)
    for turn in (yield from sort(turns)):
        yield from allocator.allocate(turn)
    fills = yield from _fills(holders, settings.load_balancer_ip_ranges)
    return Allocation(allocator.assignments, allocator.problems, fills)


class _Way(NamedTuple):
    """How a Service shares an address: equal for all that do. With policy Local, all need the same endpoints."""

    key: str
    local_to: frozenset[tuple[str, str]]


class _Sharing(NamedTuple):
    """How a Service shares an address, and its ports, which no other may have there."""

    way: _Way
    ports: frozenset[tuple[str, int]]


class _Claimant(NamedTuple):
    """A Service that has an address or is to get one. `sharing` None: with no other Service."""

    key: ObjectKey
    sharing: _Sharing | None


class _Asked(NamedTuple):
    """An address that a Service asks for, and how a Problem calls it."""

    address: str
    subject: str


class _Turn(NamedTuple):
    """A Service, what it has of each family or may have soon, and what it asks for.

    By their `rank`, which no two have, those that ask for an address come first, then the older ones.
    """

    rank: tuple[bool, str, ObjectKey]
    service: BalancedService
    claimant: _Claimant
    has: Mapping[Family, str]
    asked: Mapping[Family, _Asked]


class _Held(NamedTuple):
    """The Services that have an address, in the order of the list, how each shares it, and the ports of those."""

    services: dict[ObjectKey, None]
    ways: set[_Way | None]
    ports: set[tuple[str, int]]


class _Holders:
    """Which Services have an address."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._by_key: dict[str, dict[str, None]] = {}

    def __contains__(self, address: str) -> bool:
        return address in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def add(self, address: str, claimant: _Claimant) -> None:
        """Note that the Service has the address, or will have it."""
        key, sharing = claimant
        held = self._held.setdefault(address, _Held({}, set(), set()))
        held.services[key] = None
        held.ways.add(sharing.way if sharing is not None else None)
        if sharing is not None:
            held.ports.update(sharing.ports)
            self._by_key.setdefault(sharing.way.key, {})[address] = None

    def hindrance(self, address: str, claimant: _Claimant) -> str:
        """Why the Service cannot have the address because of others; empty if it can."""
        held, (key, sharing) = self._held.get(address), claimant
        if held is None or key in held.services:
            return ""
        has = f"is in use: Service {next(iter(held.services))} has it"
        if sharing is None or held.ways != {sharing.way}:
            agreeing = f"{SHARING.name} and externalTrafficPolicy (if Local, the selector too)"
            return f"{has}. Services share an address if they agree in {agreeing}."
        if not held.ports.isdisjoint(sharing.ports):
            return f"{has} with one of the ports."
        return f"{has}, and {MOST_SHARED - 1} others do." if len(held.services) >= MOST_SHARED else ""

    def shared(self, sharing: _Sharing) -> list[str]:
        """The first addresses of Services with the same key."""
        return list(islice(self._by_key.get(sharing.way.key, ()), MOST_SHARED))


class _Allocator:
    """Gives Services their addresses, one Service after the other."""

    def __init__(self, settings: Settings, holders: _Holders, refusal: Callable[[str], str]) -> None:
        self.assignments: list[Assignment] = []
        self.problems: list[tuple[ObjectKey, Problem]] = []
        self._ranges = ", ".join(settings.load_balancer_ip_ranges)
        self._holders = holders
        self._refusal = refusal
        self._candidates: dict[Family, Iterator[str]] = {
            family: islice(_addresses_in(settings.load_balancer_ip_ranges, family), MOST_CANDIDATES)
            for family in map(family_of, settings.load_balancer_ip_ranges)
        }
        self._first_free = {family: next(candidates, None) for family, candidates in self._candidates.items()}
        """The first address of each family that was free when it was looked for; None: none was."""

    def allocate(self, turn: _Turn) -> Steps[None]:
        """Give the Service an address of each of its families, if there is one."""
        yield 1
        service, families = turn.service, _families(turn.service)
        chosen: dict[Family, str] = {}
        for family in families:
            if (address := (yield from self._choose(turn, family, families))) is not None:
                chosen[family] = address
        self._report_useless(turn, families)
        if service.spec.ip_family_policy == _REQUIRE_BOTH and len(chosen) < len(families):
            chosen = {family: turn.has[family] for family in chosen if family in turn.has}
        addresses = tuple(chosen.values())
        for address in addresses:
            self._holders.add(address, turn.claimant)
        if set(addresses) != set((_present(service) or {}).values()):
            self.assignments.append(Assignment(service, addresses))

    def _choose(self, turn: _Turn, family: Family, families: Collection[Family]) -> Steps[str | None]:
        """The address of this family that the Service is to have, or None."""
        service, has, asked = turn.service, turn.has.get(family), turn.asked.get(family)
        if asked is not None and asked.address != has:
            why = self._refusal(asked.address) or self._holders.hindrance(asked.address, turn.claimant)
            if not why:
                return asked.address
            self._report(service, asked.subject, f"{why} {_KEEPS}")
            return has
        if has is not None:
            return has
        for shared in self._holders.shared(turn.claimant.sharing) if turn.claimant.sharing is not None else ():
            is_free = family_of(shared) == family and not self._holders.hindrance(shared, turn.claimant)
            if is_free and not self._refusal(shared):
                return shared
        address = yield from self._next_free(family)
        if address is None and (family in self._candidates or not self._can_do_without(service, family, families)):
            rest = f"is free in --loadbalancer-ip-range ({self._ranges}). The Service waits for one."
            self._report(service, f"no {family} address", rest)
        return address

    def _can_do_without(self, service: BalancedService, family: Family, families: Collection[Family]) -> bool:
        """Whether the Service is complete without this family, of which the ranges have no network."""
        others = any(other in self._candidates for other in families if other is not family)
        return others and service.spec.ip_family_policy != _REQUIRE_BOTH

    def _next_free(self, family: Family) -> Steps[str | None]:
        """The first address that no Service has and that nodes serve."""
        address = self._first_free.get(family)
        while address is not None and (address in self._holders or self._refusal(address)):
            yield 1
            address = self._first_free[family] = next(self._candidates[family], None)
        return address

    def _report_useless(self, turn: _Turn, families: Collection[Family]) -> None:
        """Report what is asked for and can never be given."""
        field = turn.service.spec.load_balancer_ip
        if field and not turn.asked:
            self._report(turn.service, f"loadBalancerIP {quoted(field)}", "is no address. Any free one serves.")
        for family, asked in turn.asked.items():
            if family not in families:
                self._report(turn.service, asked.subject, f"is not given: ipFamilies of the Service lack {family}.")

    def _report(self, service: BalancedService, subject: str, rest: str) -> None:
        self.problems.append((service.key, Problem.about(_REASON, subject, rest)))


_KEEPS = "It keeps the address that it has, if any."


def _is_ours(service: BalancedService, settings: Settings) -> bool:
    """Whether this allocator gives the Service addresses. One that is being deleted gets none."""
    spec = service.spec
    is_ours = (spec.load_balancer_class or NO_CLASS) in settings.load_balancer_classes
    return spec.type == "LoadBalancer" and is_ours and service.metadata.deletion_timestamp is None


def _present(service: BalancedService) -> dict[Family, str] | None:
    """The address of each family in the status; None if this allocator cannot have written it: it is another's."""
    found: dict[Family, str] = {}
    for entry in (service.status.load_balancer.ingress or ())[:3]:
        address = canonical(entry.ip)
        if address is None or entry.ip_mode not in {None, "", "VIP"} or family_of(address) in found:
            return None
        found[family_of(address)] = address
    return found


def _in_status(service: BalancedService) -> Iterator[str]:
    written = (entry.ip for entry in (service.status.load_balancer.ingress or ())[:MOST_ADDRESSES])
    return filter(None, map(canonical, written))


def _external(service: BalancedService, settings: Settings) -> Iterator[str]:
    """The external IPs that nodes may serve."""
    ranges = settings.external_ip_ranges
    for address in filter(None, map(canonical, (service.spec.external_ips or ())[:MOST_ADDRESSES])):
        if not (ranges or settings.strict_external_ips) or is_in(address, ranges):
            yield address


def _asked(service: BalancedService) -> dict[Family, _Asked]:
    """The addresses that the Service asks for. An annotation counts before `loadBalancerIP`; an invalid one does not.

    Nodes report an invalid annotation.
    """
    annotations, field = service.metadata.annotations, service.spec.load_balancer_ip
    if (asked := alone(ADDRESSES, annotations).of(AskedAddresses)) is not None:
        return {family_of(ip): _Asked(ip, f"annotation {ADDRESSES.name} {ip}") for ip in asked.addresses}
    address = canonical(field)
    return {} if address is None else {family_of(address): _Asked(address, f"loadBalancerIP {quoted(field)}")}


def _families(service: BalancedService) -> list[Family]:
    written = service.spec.ip_families or [family_of(ip) for ip in cluster_ips(service, 2)]
    return [Family(name) for name in dict.fromkeys(written[:2]) if name in tuple(Family)]


def _sharing(service: BalancedService) -> _Sharing | None:
    key = alone(SHARING, service.metadata.annotations).of(SharingKey)
    is_local, selector = external_policy(service) == LOCAL, service.spec.selector or {}
    if key is None or service.spec.type != "LoadBalancer" or (is_local and not selector):
        return None
    ports = frozenset((port.protocol, port.port) for port in service.spec.ports or ())
    return _Sharing(_Way(key.text, frozenset(selector.items() if is_local else ())), ports)


def _fills(holders: _Holders, ranges: tuple[str, ...]) -> Steps[Mapping[Family, tuple[int, int]]]:
    in_use: Counter[Family] = Counter()
    for address in holders:
        yield 1
        in_use[family_of(address)] += is_in(address, ranges)
    sizes: Counter[Family] = Counter()
    for text in ranges:
        sizes[family_of(text)] += ip_network(text).num_addresses
    return {family: (in_use[family], min(size, MOST_CANDIDATES)) for family, size in sizes.items()}


def _addresses_in(ranges: Iterable[str], family: Family) -> Iterator[str]:
    for text in ranges:
        if family_of(text) == family:
            yield from map(str, ip_network(text))
