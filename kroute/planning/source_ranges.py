"""`loadBalancerSourceRanges`: which clients may use the addresses of a Service's load balancer."""

from collections.abc import Collection
from contextlib import suppress
from ipaddress import IPv6Network, ip_network

from kroute.model.addresses import Family, family_of, network
from kroute.model.bounds import MOST_RANGES, Problems, Steps
from kroute.model.objects import Service
from kroute.model.plan import Problem, quoted, range_lengths

Ranges = dict[Family, tuple[str, ...]]


_UNITS_A_CUT = 5
"""What a network takes that is cut out of another one."""


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
        problems.append(_too_many(count))
    parsed = [_parse(text.strip(), problems) for text in written[:MOST_RANGES]]
    networks = list(dict.fromkeys(filter(None, parsed)))
    is_understood = None not in parsed and count <= MOST_RANGES
    named = set(map(family_of, networks))
    unrestricted = {family_of(it) for it in networks if it.endswith("/0")}
    if is_understood and named != unrestricted:
        problems.extend(_not_restricted(family) for family in sorted(set(families) - named))
    found: dict[Family, dict[str, None]] = {
        family: {} for family in families if family not in unrestricted and (family in named or not is_understood)
    }
    for it in networks:
        family = family_of(it)
        if family not in found:
            continue
        if int(it.rpartition("/")[2]) in range_lengths(family):
            found[family][it] = None
        else:
            parts = _cut(it, family)
            found[family] |= dict.fromkeys(parts)
            yield len(parts) * _UNITS_A_CUT
    return {family: tuple(of_family) for family, of_family in found.items()}


def _parse(text: str, problems: Problems) -> str | None:
    with suppress(ValueError):
        if not _is_mapped(found := network(text)):
            return str(found)
    subject = f"loadBalancerSourceRanges {quoted(text)}"
    message = f"{subject} is not a network and admits no client. Write ADDRESS/PREFIX, for example 10.0.0.0/8."
    problems.append(Problem("InvalidSourceRange", subject, message))
    return None


def _cut(text: str, family: Family) -> list[str]:
    """The networks of the next of the `range_lengths` that are together this one: eight at most."""
    whole = ip_network(text)
    length = min(it for it in range_lengths(family) if it > whole.prefixlen)
    return [str(it) for it in whole.subnets(new_prefix=length)]


def _is_mapped(found: object) -> bool:
    """Whether it holds IPv4 addresses written as IPv6 ones, which no packet has as its source."""
    return isinstance(found, IPv6Network) and found.network_address.ipv4_mapped is not None


def _not_restricted(family: Family) -> Problem:
    subject = "spec.loadBalancerSourceRanges"
    closed = "::1/128" if family is Family.IPV6 else "127.0.0.1/32"
    message = (
        f"{subject} has no {family.value} network, so {family.value} clients are not restricted, as with kube-proxy. "
        f"Write the {family.value} networks that may call, or {closed} for none."
    )
    return Problem("SourceRangesOfOneFamily", subject, message)


def _too_many(count: int) -> Problem:
    subject = f"{count} loadBalancerSourceRanges"
    message = f"{subject} are too many: only the first {MOST_RANGES} admit clients. Join networks."
    return Problem("TooManySourceRanges", subject, message)
