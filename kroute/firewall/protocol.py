"""The protocol that every backend implements. Code outside this folder uses the kernel's firewall only through it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from kroute.firewall.packet_trace import Rules
from kroute.firewall.sets import Capacity, Sets
from kroute.kernel.node_kernel import ClientName, NodeKernel
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, SetEntry
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings

SetCount: TypeAlias = Callable[[Family, AddressSet], int]
"""How many elements a set has, as far as kroute knows."""


class Prerequisites(NamedTuple):
    """What the kernel must offer to a backend.

    `name` is the name of the check. `missing` has one sentence for each missing prerequisite of each family; it ends in
    `; ` and the next step. `fulfilled` is the sentence for when nothing is missing.
    """

    name: str
    missing: Mapping[Family, list[str]]
    fulfilled: str


class Firewall(Protocol):
    """The sets of both families, and the rules that look them up. Set entries change with Services, rules do not.

    An element is a `SetEntry`; its first address says its family. Unless it says otherwise, a method raises KernelError
    when it cannot reach the kernel.
    """

    async def ensure_sets(self) -> list[str]:
        """Make the sets that are missing, and make anew those of another kind, which are then empty.

        A set with less room than it should have gets that room, and keeps its elements. Returns one sentence for each
        set that was not as it should be. Rules that look into a set may have to go for it; `ensure_rules` is
        called later, when the sets are filled.
        """
        ...

    def capacity(self, family: Family, which: AddressSet) -> Capacity | None:
        """How much the set can hold, as the last call that made, found or enlarged it left it; None before any."""
        ...

    def elements(self) -> AsyncIterator[list[SetEntry]]:
        """All elements of all sets, in parts of some hundreds. The caller may change elements between two parts."""
        ...

    async def change_elements(self, changes: Mapping[SetEntry, bool]) -> Mapping[SetEntry, str]:
        """Add elements to their sets (True) or delete them (False).

        What is so already is no failure. A set that is full grows, up to `Room.most`; no packet meets it empty
        meanwhile. Returns the elements that the kernel refuses, each with a sentence that says why; they do not stop
        the others.
        """
        ...

    async def ensure_rules(self, node: NodeFacts) -> list[str]:
        """Write all rules for this node that are missing or wrong. The sets must exist and be filled.

        It may take long, and the caller may change elements meanwhile.
        Returns one sentence for each repair of what somebody else has changed. Rules that are written for the first
        time, or because the facts changed, are logged instead. When the kernel does not support some rules, that is
        logged once, with what the node then lacks; it raises nothing, and the other rules are written.
        """
        ...

    def enforces(self, family: Family) -> bool:
        """Whether the rules that keep clients outside their source ranges off (RESTRICTED, SOURCE_RANGE) stand.

        As the last `ensure_rules` found or wrote them; False before the first. Rules that stand need no lock to be
        found so.
        """
        ...

    def rules_hindered_by(self) -> str:
        """What kept the last `ensure_rules` from writing rules though the kernel could have them, as a sentence; or "".

        It is worth another attempt soon.
        """
        ...

    async def is_untouched(self) -> bool:
        """Whether nobody else has changed a set or rule since all were last read or written by this object.

        A resync would then find nothing, and may be skipped. False if the backend cannot know.
        """
        ...

    async def looks_untouched(self, count: SetCount) -> bool:
        """Whether nobody else seems to have changed a set since the last resync or call; see `LastLook`.

        It must cost much less than to read the sets. False after a resync that could not write all.
        """
        ...

    async def are_rules_untouched(self) -> bool:
        """Whether nobody else has changed a rule since the last `ensure_rules`. It must cost much less than that."""
        ...

    async def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever somebody else has changed a set or rule, or may have; a resync is due then.

        Runs until it is cancelled. Where the kernel reports no such changes, it returns at once.
        """
        ...

    async def is_present(self) -> bool:
        """Whether the kernel has sets of kroute's, from any run."""
        ...

    async def remove(self, report: CleanupReport) -> None:
        """Remove the rules and sets that kroute has made in any run."""
        ...

    def set_name(self, family: Family, which: AddressSet) -> str:
        """The set's name in the backend's own tools, for messages to people."""
        ...

    async def read_sets(self, family: Family, sets: Collection[AddressSet] = tuple(AddressSet)) -> Sets:
        """The elements that the kernel has now; a missing set counts as empty. Changes nothing."""
        ...

    async def rules(self, family: Family, node: NodeFacts) -> Rules:
        """The rules that `ensure_rules` writes for this node; a packet trace sends packets through them."""
        ...

    async def rule_differences(self, family: Family, node: NodeFacts) -> list[str]:
        """What `ensure_rules` would find wrong or could not read, one sentence each. Changes nothing."""
        ...

    async def prerequisites(self) -> Prerequisites:
        """The backend's prerequisites, checked. It may load kernel modules, as a start does."""
        ...


class Backend(NamedTuple):
    """A way to program the kernel's firewall, and what it needs before it can be used.

    `clients` are the kernel clients that must be open; `presence_clients` those that `is_present` needs, which does not
    load the backend if it can.
    `modules` are kernel modules with their purpose. `overrules`: what its rules accept is not dropped by any rule of
    iptables. `capabilities` are needed besides NET_ADMIN, with their purpose. `missing_libraries` returns one sentence
    for each missing library; it ends in `; ` and the next step.
    """

    clients: tuple[ClientName, ...]
    presence_clients: tuple[ClientName, ...]
    modules: Mapping[str, str]
    overrules: bool
    capabilities: Mapping[str, str]
    missing_libraries: Callable[[], list[str]]
    make: Callable[[Settings, NodeKernel], Firewall]
    is_present: Callable[[Settings, NodeKernel], Awaitable[bool]]
