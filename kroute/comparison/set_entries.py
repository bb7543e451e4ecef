"""Entries of the sets that the firewall looks up. An entry is in its set or not: nothing else about it can differ."""

from collections.abc import Callable, Collection, Iterable

from kroute.model.plan import SetEntry


def missing(desired: Iterable[SetEntry], applied: Collection[SetEntry]) -> list[SetEntry]:
    """The desired entries that the kernel does not have."""
    return [entry for entry in desired if entry not in applied]


def differences(
    desired: Collection[SetEntry], applied: Collection[SetEntry], name_of: Callable[[SetEntry], str]
) -> list[str]:
    """What is not as desired, one sentence each. `name_of` returns the kernel's name of an entry's set."""

    def said(entry: SetEntry) -> tuple[str, str]:
        return name_of(entry), text(entry)

    return [
        *(f"set {name} lacks {element}" for name, element in sorted(map(said, missing(desired, applied)))),
        *(f"set {name} has {element}, not planned" for name, element in sorted(map(said, missing(applied, desired)))),
    ]


def describe_drift(entry: SetEntry, name: str, *, is_there: bool) -> str:
    """The drift of an entry in one sentence. `name` is the kernel's name of its set."""
    return f"entry {text(entry)} of set {name} was {'not wanted' if is_there else 'missing'}"


def text(entry: SetEntry) -> str:
    """The entry's element as ipset(8) writes it, with commas."""
    return ",".join(map(str, entry.element))
