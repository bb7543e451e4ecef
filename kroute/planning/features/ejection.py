"""Ejection (`kroute.io/ejection`): a real server that does not answer gets no new connections for a while.

The plan says which virtual servers have it, and after what times; `kroute.controllers.ipvs.ejections` ejects.
"""

import msgspec

from kroute.base.forwarding import TUNNEL
from kroute.base.schedulers import FALLBACK, SCHEDULER_FLAGS
from kroute.model.plan import Ejection, Protocol, VirtualServer, quoted
from kroute.planning.features.step import FeatureStep, PlanInputs
from kroute.planning.options import Annotation, Applied, Options, names, read_seconds

AFTER = range(5, 301)
"""Seconds without an answer. The kernel's counters are up to two seconds old, and are read every two seconds."""
HOLD = range(5, 3601)
"""Seconds."""
_ALLOWED = {"after": AFTER, "hold": HOLD}
_ON, _OFF = {"on", "true"}, {"off", "false"}


class Ejecting(msgspec.Struct, FeatureStep, frozen=True):
    """Real servers of the Service are ejected."""

    ejection: Ejection

    def virtual_server(self, server: VirtualServer) -> VirtualServer:
        """The virtual server with it. Answers from behind a tunnel do not pass the node: there, none is ejected."""
        if server.key.protocol != Protocol.TCP or server.method == TUNNEL:
            return server
        return msgspec.structs.replace(server, ejection=self.ejection)


def begin(inputs: PlanInputs) -> Ejecting | None:
    """The step of a Service that asks for ejection."""
    return inputs.options.of(Ejecting)


def read_ejection(text: str) -> tuple[Ejection | None, str | None]:
    """Read `on`, `off`, or `after TIME` and `hold TIME` with a comma between; returns what is wrong, too."""
    if text.lower() in _ON | _OFF:
        return (Ejection() if text.lower() in _ON else None), None
    found: dict[str, int] = {}
    for part in text.split(",", 2):
        name, _, time = part.strip().partition(" ")
        seconds = read_seconds(time.strip())
        allowed = _ALLOWED.get(name, range(0))
        if seconds is None or seconds not in allowed or name in found:
            allowed_parts = "neither after 5s to 5m nor hold 5s to 1h, once each"
            return None, f"is no ejection: {quoted(part.strip())} is {allowed_parts}"
        found[name] = seconds
    return Ejection(**found), None


def hindrance(scheduler: str, flags: int, *, has_counters: bool) -> str | None:
    """Why a real server cannot be ejected; None if it can.

    `has_counters`: whether the kernel sums up the counters of real servers (--ipvs-estimation).
    """
    if not has_counters:
        return "is not obeyed: --ipvs-estimation is off, so the kernel does not count answers"
    fallback = f"{scheduler}-fallback"
    if fallback in FALLBACK and not flags & SCHEDULER_FLAGS[fallback].bit:
        return f"is not obeyed: without the flag {fallback}, clients of an ejected endpoint would be refused"
    return None


def _apply(options: Options, value: str) -> Applied:
    ejection, complaint = read_ejection(value)
    if ejection is None:
        return options, complaint
    if why := hindrance(options.scheduler, options.flags, has_counters=options.has_counters):
        return options, why
    return options.asking(Ejecting(ejection)), complaint


ANNOTATIONS = (
    Annotation(
        names=names("ejection"),
        meaning="whether endpoints that do not answer new connections over TCP get none for a while",
        allowed="on, off, or after 5s to 5m (without an answer) and hold 5s to 1h, separated by a comma",
        apply=_apply,
    ),
)
