"""The annotations `kroute.io/weights` and `kroute.io/locality`, as people write them: what is wrong is a complaint."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

import msgspec

from kroute.model.plan import quoted
from kroute.planning.options import Annotation, Applied, Options, names
from kroute.planning.weight_facts import MAX_WEIGHT, read_weight

MOST_WEIGHTS = 1000
"""Zones and nodes that one annotation may weigh; those beyond are not read."""

LONGEST_NAME = 253
"""Characters of a Node's name, as in the API. A zone's name is a label's value and has 63 at most."""
_NAME = re.compile(f"[A-Za-z0-9._-]{{1,{LONGEST_NAME}}}")
"""What both may consist of. So `zone/a=3 zone/b=1` is no zone with a strange name, but lacks a comma."""

LONGEST_REMEMBERED = 512
"""Characters of an annotation whose meaning is remembered: some 20 zones."""

FULL = 100

T = TypeVar("T")

Read = tuple[T, str | None]
"""What could be read, and what is wrong with the text (None: nothing)."""


class ServiceWeights(msgspec.Struct, frozen=True):
    """What a Service says of zones and nodes; those that it does not name weigh 1."""

    zones: dict[str, int]
    nodes: dict[str, int]


class Locality(NamedTuple):
    """Which servers come first: those on the same node and then in the same zone, or in the zone only.

    `spill` is how much of their capacity clients near them may use, in percent.
    """

    near: Literal["node", "zone"]
    spill: int = FULL

    def __str__(self) -> str:
        return f"prefer-{self.near}, spill {self.spill}%"


def _remembered(parse: Callable[[str], Read[T]]) -> Callable[[str], Read[T]]:
    """A Service is read several times for each plan. A text of any length may be read, but only short ones are kept."""
    parse_once = lru_cache(maxsize=1 << 9)(parse)
    return lambda text: (parse_once if len(text) <= LONGEST_REMEMBERED else parse)(text)


@_remembered
def read_weights(text: str) -> Read[ServiceWeights | None]:
    """Read `zone/NAME=WEIGHT,node/NAME=WEIGHT`. A part that is wrong is left out, and the others count."""
    parts = text.split(",", MOST_WEIGHTS)
    read: dict[str, dict[str, int]] = {"zone": {}, "node": {}}
    refused = [f"there are more than {MOST_WEIGHTS:,} weights"] if len(parts) > MOST_WEIGHTS else []
    refused += filter(None, (_take(part.strip(), read) for part in parts[:MOST_WEIGHTS]))
    found = ServiceWeights(read["zone"], read["node"]) if read["zone"] or read["node"] else None
    if not refused:
        return found, None
    why = ", ".join(refused[:3])
    return found, f"{'is obeyed only in part' if found else 'changes no weight'}: {why}"


def _take(part: str, read: dict[str, dict[str, int]]) -> str | None:
    """Put one part into its place. Returns why it cannot be."""
    what, _, number = part.rpartition("=")
    kind, _, name = what.strip().partition("/")
    weight = read_weight(number.strip())
    if kind not in read or _NAME.fullmatch(name) is None:
        return f"{quoted(part)} names neither a zone nor a node"
    if weight is None:
        return f"{quoted(part)} has no weight from 0 to {MAX_WEIGHT}"
    if name in read[kind]:
        return f"{kind} {quoted(name)} is there twice, and the first counts"
    read[kind][name] = weight
    return None


_NEAR: dict[str, Locality] = {"prefer-node": Locality("node"), "prefer-zone": Locality("zone")}


@_remembered
def read_locality(text: str) -> Read[Locality | None]:
    """Read `prefer-node` or `prefer-zone`, and `spill PERCENT%` behind a comma."""
    first, comma, rest = text.partition(",")
    locality = _NEAR.get(first.strip())
    if locality is None:
        return None, "is not a locality; all servers count alike"
    words = rest.split(None, 2)
    spill = read_weight(words[1].removesuffix("%")) if len(words) == 2 and words[0] == "spill" else None
    if not comma or (spill is not None and 1 <= spill <= FULL and words[1].endswith("%")):
        return (locality._replace(spill=spill) if spill is not None else locality), None
    return locality, f"is obeyed only in part: {quoted(rest.strip())} is not a spill, and {FULL}% holds"


def _asking(read: Callable[[str], Read[T]]) -> Callable[[Options, str], Applied]:
    """Ask for what can be read."""

    def apply(options: Options, value: str) -> Applied:
        found, complaint = read(value)
        return options.asking(found), complaint

    return apply


ANNOTATIONS = (
    Annotation(
        names=names("weights"),
        meaning="what the real servers of a zone or a node weigh, for this Service",
        allowed=f"zone/NAME=WEIGHT and node/NAME=WEIGHT, separated by commas, with weights from 0 to {MAX_WEIGHT}",
        apply=_asking(read_weights),
        needs_shares=True,
    ),
    Annotation(
        names=names("locality"),
        meaning="real servers on the client's node, or in its zone, come first, till their share is used up",
        allowed="prefer-node or prefer-zone, and behind a comma spill with 1% to 100%",
        apply=_asking(read_locality),
        needs_shares=True,
    ),
)
