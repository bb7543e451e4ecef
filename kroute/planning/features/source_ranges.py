"""`loadBalancerSourceRanges`: which clients may use the addresses of a Service's load balancer."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from ipaddress import IPv6Network, ip_network

from kroute.model.addresses import Family, family_of, network
from kroute.model.objects import Service
from kroute.model.plan import AddressSet, Problem, Problems, SetEntry, quoted, range_lengths
from kroute.model.steps import Steps
from kroute.planning.features.step import FeatureStep, PlanInputs
from kroute.planning.frontends import Frontend

MOST_RANGES = 1000
"""Source ranges of one Service that are looked at; further ones let nobody in."""

MOST_RANGE_ENTRIES = 50_000
"""Source ranges of one Service times its ports on the load balancer's addresses: as many as its real servers may be
(`--max-backends`) unless that is set otherwise.
"""

_UNITS_A_CUT = 5
"""What a network takes that is cut out of another one."""

Ranges = dict[Family, tuple[str, ...]]


class SourceRanges(FeatureStep):
    """The source ranges of one Service. A frontend for whose ranges there is no room is not served."""

    def __init__(self, inputs: PlanInputs) -> None:
        self._inputs = inputs
        self._ranges: Ranges = {}
        self._room = MOST_RANGE_ENTRIES
        self._left_out = 0

    def prepare(self) -> Steps[None]:
        """Find the networks."""
        inputs = self._inputs
        self._ranges = yield from source_ranges(inputs.service, inputs.balanced, inputs.problems)

    def refuses(self, frontend: Frontend) -> bool:
        """Whether there is no room for the frontend's ranges."""
        count = len(self._networks(frontend) or ())
        if count <= self._room:
            return False
        self._left_out += count
        return True

    def entries(self, frontend: Frontend) -> Iterator[SetEntry]:
        """Those that restrict the frontend to its ranges."""
        networks = self._networks(frontend)
        if networks is None:
            return
        self._room -= len(networks)
        port = (frontend.key.address, int(frontend.key.protocol), frontend.key.port)
        yield SetEntry(AddressSet.RESTRICTED, port)
        for one in networks:
            yield SetEntry(AddressSet.SOURCE_RANGE, (*port, one))

    def finish(self) -> None:
        """Report the ranges for which there was no room."""
        if self._left_out:
            subject = f"{self._left_out} loadBalancerSourceRanges times ports"
            beyond = f"beyond the first {MOST_RANGE_ENTRIES} are not served, with the ports that have them"
            rest = f"{beyond}. Join networks, or split the Service."
            self._inputs.problems.put_first(Problem.about("TooManySourceRanges", subject, rest))

    def _networks(self, frontend: Frontend) -> tuple[str, ...] | None:
        """The networks of the clients that are let in; None lets in all."""
        return self._ranges.get(family_of(frontend.key.address)) if frontend.is_balanced else None


def begin(inputs: PlanInputs) -> SourceRanges | None:
    """The step of a Service with source ranges, where its load balancer has addresses."""
    is_used = inputs.service.spec.load_balancer_source_ranges and inputs.balanced
    return SourceRanges(inputs) if is_used else None


def source_ranges(service: Service, families: Collection[Family], problems: Problems) -> Steps[Ranges]:
    """The networks of the clients that are let in, for each of the families that is restricted.

    As in kube-proxy (`newBaseServiceInfo` in pkg/proxy/serviceport.go), each family has its own networks of the list:
    a family that the list does not name is not restricted, which is a Problem, and neither is one with a /0. Text that
    is no network is a Problem too. It may have been meant for either family, so a family without networks is then
    closed to everybody; kube-proxy skips such text. `families` are those that the load balancer's addresses have.
    Networks of another prefix length than the `range_lengths` are cut into longer ones.
    """
    written = service.spec.load_balancer_source_ranges or ()
    if not written or not families:
        return {}
    if (count := len(written)) > MOST_RANGES:
        rest = f"are too many: only the first {MOST_RANGES} admit clients. Join networks."
        problems.append(Problem.about("TooManySourceRanges", f"{count} loadBalancerSourceRanges", rest))
    parsed = [_parse(text.strip(), problems) for text in written[:MOST_RANGES]]
    networks = list(dict.fromkeys(filter(None, parsed)))
    is_understood = None not in parsed and count <= MOST_RANGES
    named = set(map(family_of, networks))
    unrestricted = {family_of(text) for text in networks if text.endswith("/0")}
    if is_understood and named != unrestricted:
        problems.extend(_not_restricted(family) for family in sorted(set(families) - named))
    found: dict[Family, dict[str, None]] = {
        family: {} for family in families if family not in unrestricted and (family in named or not is_understood)
    }
    for text in networks:
        family = family_of(text)
        if family not in found:
            continue
        if int(text.rpartition("/")[2]) in range_lengths(family):
            found[family][text] = None
        else:
            parts = _cut(text, family)
            found[family] |= dict.fromkeys(parts)
            yield len(parts) * _UNITS_A_CUT
    return {family: tuple(of_family) for family, of_family in found.items()}


def _parse(text: str, problems: Problems) -> str | None:
    with suppress(ValueError):
        if not _is_mapped(found := network(text)):
            return str(found)
    rest = "is not a network and admits no client. Write ADDRESS/PREFIX, for example 10.0.0.0/8."
    problems.append(Problem.about("InvalidSourceRange", f"loadBalancerSourceRanges {quoted(text)}", rest))
    return None


def _cut(text: str, family: Family) -> list[str]:
    """The networks of the next of the `range_lengths` that are together this one: eight at most."""
    whole = ip_network(text)
    length = min(longer for longer in range_lengths(family) if longer > whole.prefixlen)
    return [str(part) for part in whole.subnets(new_prefix=length)]


def _is_mapped(found: object) -> bool:
    """Whether it holds IPv4 addresses written as IPv6 ones, which no packet has as its source."""
    return isinstance(found, IPv6Network) and found.network_address.ipv4_mapped is not None


def _not_restricted(family: Family) -> Problem:
    closed = "::1/128" if family is Family.IPV6 else "127.0.0.1/32"
    rest = (
        f"has no {family.value} network, so {family.value} clients are not restricted, as with kube-proxy. "
        f"Write the {family.value} networks that may call, or {closed} for none."
    )
    return Problem.about("SourceRangesOfOneFamily", "spec.loadBalancerSourceRanges", rest)
