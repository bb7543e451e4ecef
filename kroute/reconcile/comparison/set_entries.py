"""Entries of the sets that the firewall looks up. An entry is in its set or not: nothing else about it can differ."""

from collections.abc import Callable, Collection, Iterable
from ipaddress import ip_network

from kroute.kernel.set_elements import element_text
from kroute.model.plan import AddressSet, SetEntry


def missing(desired: Iterable[SetEntry], applied: Collection[SetEntry]) -> list[SetEntry]:
    """The desired entries that the kernel does not have."""
    return [entry for entry in desired if entry not in applied]


def differences(
    desired: Collection[SetEntry], applied: Collection[SetEntry], name_of: Callable[[SetEntry], str]
) -> list[str]:
    """What is not as desired, one sentence each. `name_of` returns the kernel's name of an entry's set.

    A pod network inside another one that the kernel has counts as present: some backends leave it out.
    """

    def said(entry: SetEntry) -> tuple[str, str]:
        return name_of(entry), text(entry)

    lost = [entry for entry in missing(desired, applied) if not _is_covered(entry, applied)]
    foreign = missing(applied, desired)
    return [
        *(f"entry {element} of set {name} is missing" for name, element in sorted(map(said, lost))),
        *(f"entry {element} of set {name} was not planned" for name, element in sorted(map(said, foreign))),
    ]


def describe_drift(entry: SetEntry, name: str, *, is_there: bool) -> str:
    """The drift of an entry in one sentence. `name` is the kernel's name of its set."""
    return f"entry {text(entry)} of set {name} was {'not wanted' if is_there else 'missing'}"


def text(entry: SetEntry) -> str:
    """The entry's parts with commas between them; the protocol, if it has one, by its name."""
    return element_text(entry.element)


def _is_covered(entry: SetEntry, by: Iterable[SetEntry]) -> bool:
    return entry.set is AddressSet.POD_NETWORK and any(
        other.set is entry.set and _is_within(str(entry.element[0]), str(other.element[0])) for other in by
    )


def _is_within(network: str, other: str) -> bool:
    inner, outer = ip_network(network), ip_network(other)
    return outer.prefixlen <= inner.prefixlen and inner.network_address in outer
