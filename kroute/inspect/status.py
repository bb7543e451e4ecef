"""What a node or a director serves, what is wrong there, and what to do about it: the answer to `kroute status`."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

import msgspec

from kroute.inspect import agent_socket
from kroute.inspect.figures import Figures
from kroute.model.document import Document
from kroute.model.plan import ServicePlan

QUESTION = agent_socket.STATUS
"""The question that an agent or a director answers with a Status. `status shared` also asks for the digest."""
WITH_DIGEST = "shared"
"""The argument of the question."""

MOST_PROBLEMS = 100
"""How many problems a Status names; `problems_total` counts all."""
MOST_OF_A_REASON = 20
"""How many problems of one reason it names while there are others, so that a frequent one hides none."""


class State(StrEnum):
    """What the agent does."""

    READY = "ready"
    STARTING = "starting"
    """The initial sync is not served yet."""
    WAITING = "waiting"
    """Another service proxy is at work on the node: nothing is written to the kernel until it has ended."""
    NO_AGENT = "no agent"
    """Nobody answers: the kernel serves what the last run has left."""


class Severity(StrEnum):
    """How far a problem reaches."""

    FAIL = "FAIL"
    """The node does not do what it should."""
    WARNING = "WARNING"
    """It concerns single Services, or will matter later."""


class StatusProblem(msgspec.Struct, frozen=True, rename="camel"):
    """One problem. `service` is NAMESPACE/NAME, or empty for the node itself. `next_step` says what to do about it."""

    severity: Severity
    service: str
    reason: str
    message: str
    next_step: str


class Served(msgspec.Struct, frozen=True, rename="camel"):
    """Counts of what is planned, and of what the kernel has of it.

    `refusing` are virtual servers without a ready endpoint, whose clients are refused. `missing` and
    `missing_real_servers` are planned and not in the kernel. `connections` are the established ones, `inactive` those
    that begin or end, and UDP flows. The kernel's counts are None if it could not be read.
    """

    services: int = 0
    virtual_servers: int = 0
    real_servers: int = 0
    refusing: int | None = None
    missing: int | None = None
    missing_real_servers: int | None = None
    connections: int | None = None
    inactive: int | None = None


class Source(msgspec.Struct, frozen=True, rename="camel"):
    """Where the agent reads Services: `api` or `manifests`.

    `connected`: whether it is read now. `objects` counts what is known of each kind. `resource_versions` are the newest
    ones that were read, by kind (empty: none yet); manifests have none. `server` is the URL of the API server in use.
    """

    kind: str
    connected: bool
    objects: Mapping[str, int] = {}
    resource_versions: Mapping[str, str] = {}
    server: str = ""


class Status(Document, kw_only=True):
    """The state of one node or director. Times are RFC 3339 in UTC, None if there is none.

    `role` is `node`, or for a director `director`; then `election` is `active`, `standby` or `unknown`. `pending` is
    how many Services have changes that were read and are not in the kernel yet. `generation` grows with each plan of
    this agent. `shared` is the digest of what must be the same on every node (`inspect.shared_state`), empty if it was
    not asked for. `reasons` counts all problems by their reason.
    """

    kind: ClassVar[str] = "Status"

    node: str
    role: str = "node"
    state: State
    version: str = ""
    started: str | None = None
    firewall: str = ""
    election: str = ""
    served: Served = Served()
    pending: int = 0
    generation: int = 0
    last_resync: str | None = None
    last_look: str | None = None
    source: Source | None = None
    shared: str = ""
    problems: list[StatusProblem] = msgspec.field(default_factory=list)
    problems_total: int = 0
    reasons: Mapping[str, int] = {}

    def names(self) -> list[str]:
        """What has problems: Services, and `node` for the node itself."""
        return [it.service or "node" for it in self.problems]

    @property
    def is_settled(self) -> bool:
        """Whether everything that was read is in the kernel."""
        return self.state is State.READY and not self.pending


def with_problems(status: Status, problems: Iterable[StatusProblem]) -> Status:
    """The status with these problems: those of the node first, in their order, and not more than MOST_PROBLEMS.

    Where they are too many, the first MOST_OF_A_REASON of each reason are preferred.
    """
    found = sorted(problems, key=lambda problem: problem.severity is not Severity.FAIL)
    reasons: Counter[str] = Counter()
    first: list[int] = []
    others: list[int] = []
    for number, problem in enumerate(found):
        (first if reasons[problem.reason] < MOST_OF_A_REASON else others).append(number)
        reasons[problem.reason] += 1
    named = [found[number] for number in sorted([*first, *others][:MOST_PROBLEMS])]
    return msgspec.structs.replace(status, problems=named, problems_total=len(found), reasons=dict(reasons))


def served(plans: Collection[ServicePlan], kernel: Figures | None) -> Served:
    """The counts of these plans, and of what the kernel has of them; None: it could not be read."""
    servers = [server for plan in plans for server in plan.virtual_servers]
    planned = Served(len(plans), len(servers), sum(len(server.real_servers) for server in servers))
    if kernel is None:
        return planned
    return msgspec.structs.replace(
        planned,
        refusing=kernel.refusing,
        missing=kernel.missing,
        missing_real_servers=kernel.missing_real_servers,
        connections=kernel.active,
        inactive=kernel.inactive,
    )


def rfc3339(moment: float) -> str | None:
    """A Unix time in UTC, to the second; None for 0, which stands for never."""
    return datetime.fromtimestamp(int(moment), UTC).isoformat().replace("+00:00", "Z") if moment else None


async def ask(state_dir: Path, about: str = "") -> Status:
    """The status of the agent or director of this state directory.

    Raises AgentUnreachableError if none answers or it is of an older version, and DecodeError for an answer of another
    version.
    """
    return msgspec.json.decode(await agent_socket.ask(state_dir, f"{QUESTION} {about}".strip()), type=Status)
