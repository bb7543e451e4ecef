"""Annotations with kroute's prefix that kroute does not know on an object of this kind: typing errors, as a rule."""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Literal

from kroute.model.objects import WEIGHT
from kroute.model.plan import Problem, shortened
from kroute.planning.annotations.table import ANNOTATION_NAMES, ANNOTATIONS, PREFIX

MOST_UNKNOWN = 20
"""Unknown annotations of one object that are kept."""
MOST_REPORTED = 3
"""Unknown annotations of one object that have a Problem each. One more says how many others there are."""

Kind = Literal["Service", "Node"]

KNOWN: Mapping[Kind, Collection[str]] = {"Service": ANNOTATION_NAMES, "Node": frozenset({WEIGHT})}
"""The annotations that kroute reads, by the kind of their object."""

_REASON = "UnknownAnnotation"
_BELONGS = dict.fromkeys(ANNOTATION_NAMES, "Services") | {WEIGHT: "Nodes and Pods"}


def unknown_names(annotations: Mapping[str, str] | None, kind: Kind = "Service") -> list[str]:
    """The names with kroute's prefix that kroute does not know there: sorted, shortened, and the first MOST_UNKNOWN."""
    known = KNOWN[kind]
    found = {shortened(name) for name in annotations or () if name not in known and _is_own(name)}
    return sorted(found)[:MOST_UNKNOWN]


def unknown_annotations(annotations: Mapping[str, str] | None, kind: Kind = "Service") -> list[Problem]:
    """A Problem for each of the first unknown names, and one for all others."""
    names = unknown_names(annotations, kind)
    problems = [_problem(name, kind) for name in names[:MOST_REPORTED]]
    if more := len(names) - len(problems):
        count = f"{more} or more" if len(names) == MOST_UNKNOWN else str(more)
        subject = "further unknown annotations"
        message = f"{count} {subject} begin with {PREFIX} too. Correct those that are named; the others appear then."
        problems.append(Problem(_REASON, subject, message))
    return problems


def _is_own(name: str) -> bool:
    """Whether the name has kroute's prefix. The API server accepts it in capital letters, too."""
    return name[: len(PREFIX)].lower() == PREFIX


def _problem(name: str, kind: Kind) -> Problem:
    subject = f"annotation {name}"
    place = _BELONGS.get(name)
    wrong = f"is for {place} and has no effect on a {kind}" if place else "is not known and has no effect"
    return Problem(_REASON, subject, f"{subject} {wrong}. {_advice(name, kind)}")


@lru_cache(maxsize=256)
def _advice(name: str, kind: Kind) -> str:
    """The known name that is most like this one, else all of them."""
    from difflib import get_close_matches  # noqa: PLC0415  few Services need it

    own = {WEIGHT: WEIGHT} if kind == "Node" else {alias: row.name for row in ANNOTATIONS for alias in row.names}
    words = {_word(alias): canonical for alias, canonical in own.items()}
    near = get_close_matches(_word(name), words, n=1)
    if near:
        return f"Did you mean {words[near[0]]}?"
    return f"Allowed on a {kind}: {', '.join(dict.fromkeys(own.values()))}."


def _word(name: str) -> str:
    """What of a name distinguishes it: kroute.io/service.Slow_Start and slow-start are the same."""
    return name.lower().rpartition("/")[2].removeprefix("service.").replace("_", "-")
