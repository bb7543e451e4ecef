"""`loadBalancerSourceRanges`: which clients may use the addresses of a Service's load balancer."""

from ipaddress import ip_network

from kroute.model.addresses import Family, family_of
from kroute.model.bounds import MOST_RANGES, Problems
from kroute.model.objects import Service
from kroute.model.plan import Problem, quoted

Ranges = dict[Family, tuple[str, ...]]


def source_ranges(service: Service, problems: Problems) -> Ranges:
    """The networks of the clients that are let in, for each family that is restricted.

    A family with a /0 is not restricted. A family that the list does not name is restricted to nobody if the other one
    is restricted. Text that is no network allows nobody and is a Problem.
    """
    if not service.spec.load_balancer_source_ranges:
        return {}
    if (count := len(service.spec.load_balancer_source_ranges)) > MOST_RANGES:
        problems.append(_too_many(count))
    written = [text.strip() for text in service.spec.load_balancer_source_ranges[:MOST_RANGES]]
    networks = list(dict.fromkeys(network for text in written if (network := _parse(text, problems)) is not None))
    open_families = {family_of(network) for network in networks if network.endswith("/0")}
    if open_families and len({family_of(network) for network in networks}) == 1:
        return {}
    return {
        family: tuple(network for network in networks if family_of(network) == family)
        for family in Family
        if family not in open_families
    }


def _parse(text: str, problems: Problems) -> str | None:
    try:
        return str(ip_network(text, strict=False))
    except ValueError:
        subject = f"loadBalancerSourceRanges {quoted(text)}"
        message = f"{subject} is not a network and lets nobody in. Write ADDRESS/PREFIX, for example 10.0.0.0/8."
        problems.append(Problem("InvalidSourceRange", subject, message))
        return None


def _too_many(count: int) -> Problem:
    subject = f"{count} loadBalancerSourceRanges"
    message = f"{subject} are too many: the first {MOST_RANGES} let clients in, the others nobody. Join networks."
    return Problem("TooManySourceRanges", subject, message)
