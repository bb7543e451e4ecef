"""The features that only some Services use, and the table of all annotations.

A feature is a module or folder here, with its annotations and its step of planning, and a line in each of the two
tables below. A Service that uses none of them has no step, and nothing here is called for it.
"""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Literal

from kroute.model.objects import WEIGHT
from kroute.model.plan import Problem, shortened
from kroute.model.steps import Steps
from kroute.planning.features import announcing, asked_addresses, direct_return, ejection, slow_start, source_ranges
from kroute.planning.features.step import FeatureStep, PlanInputs
from kroute.planning.features.weights import rule, text
from kroute.planning.options import DIRECTOR_WEIGHT, ORDINARY, PREFIX, Annotation, Options

ANNOTATIONS: tuple[Annotation, ...] = (
    *ORDINARY,
    *slow_start.ANNOTATIONS,
    *text.ANNOTATIONS,
    *ejection.ANNOTATIONS,
    *direct_return.ANNOTATIONS,
    *announcing.ANNOTATIONS,
    *asked_addresses.ANNOTATIONS,
    DIRECTOR_WEIGHT,
)
"""Every annotation of a Service that kroute reads, in the order of application."""

STEPS: tuple[Callable[[PlanInputs], FeatureStep | None], ...] = (
    rule.begin,
    source_ranges.begin,
    slow_start.begin,
    ejection.begin,
    direct_return.begin,
    announcing.begin,
)
"""Each returns a feature's step for a Service that uses it; in the order in which the steps take their turns."""

ANNOTATION_NAMES = frozenset(name for row in ANNOTATIONS for name in row.names)
"""The full names of all annotations that kroute reads, with the aliases."""

MOST_UNKNOWN = 20
"""Unknown annotations of one object that are kept."""
MOST_REPORTED = 3
"""Unknown annotations of one object that have a Problem each. One more says how many others there are."""

Annotated = Literal["Service", "Node"]

KNOWN: Mapping[Annotated, Collection[str]] = {"Service": ANNOTATION_NAMES, "Node": frozenset({WEIGHT})}
"""The annotations that kroute reads, by the kind of their object."""

_REASON = "UnknownAnnotation"
_BELONGS = dict.fromkeys(ANNOTATION_NAMES, "Services") | {WEIGHT: "Nodes and Pods"}
_WITH_SHARES = Options("wrr")


def beginning(inputs: PlanInputs) -> Steps[list[FeatureStep]]:
    """The steps of the features that a Service uses, prepared."""
    found = [step for begin in STEPS if (step := begin(inputs)) is not None]
    for step in found:
        yield from step.prepare()
    return found


def apply_annotations(options: Options, annotations: Mapping[str, str] | None) -> tuple[Options, list[Problem]]:
    """Override `options` by a Service's annotations.

    Returns a Problem for each value that cannot be applied in full.
    """
    if not annotations:
        return options, []
    if options.is_open and needing_shares(annotations) is not None:
        options = options.sharing()
    problems: list[Problem] = []
    for row in ANNOTATIONS:
        name = row.written_in(annotations)
        if name is None:
            continue
        value = annotations[name].strip()
        options, complaint = row.apply(options, value)
        if complaint is not None:
            subject, rest = f"annotation {name}={shortened(value)}", f"{complaint}. Allowed: {row.allowed}."
            problems.append(Problem.about("InvalidAnnotation", subject, rest))
    return options, problems


def needing_shares(annotations: Mapping[str, str]) -> str | None:
    """The first annotation, as it is written, that has an effect with a scheduler by weight only; None: there is none.

    A value that is invalid or changes nothing, such as `kroute.io/slow-start: "0"`, does not count.
    """
    for row in ANNOTATIONS:
        name = row.written_in(annotations) if row.needs_shares else None
        if name is not None and row.apply(_WITH_SHARES, annotations[name].strip())[0] != _WITH_SHARES:
            return name
    return None


def unknown_names(annotations: Mapping[str, str] | None, kind: Annotated = "Service") -> list[str]:
    """The names with kroute's prefix that kroute does not know there: sorted, shortened, and the first MOST_UNKNOWN."""
    known = KNOWN[kind]
    found = {shortened(name) for name in annotations or () if name not in known and _is_own(name)}
    if kind == "Node" and found:
        from kroute.planning.bgp.annotations import NAMES  # noqa: PLC0415  few Nodes have them

        found -= NAMES
    return sorted(found)[:MOST_UNKNOWN]


def unknown_annotations(annotations: Mapping[str, str] | None, kind: Annotated = "Service") -> list[Problem]:
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


def _problem(name: str, kind: Annotated) -> Problem:
    place = _BELONGS.get(name)
    wrong = f"is for {place} and has no effect on a {kind}" if place else "is not known and has no effect"
    return Problem.about(_REASON, f"annotation {name}", f"{wrong}. {_advice(name, kind)}")


@lru_cache(maxsize=256)
def _advice(name: str, kind: Annotated) -> str:
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
