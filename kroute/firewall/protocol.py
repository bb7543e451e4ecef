"""The protocol that every backend implements. Code outside this folder uses the kernel's firewall only through it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from kroute.firewall.packet_trace import Rules
from kroute.firewall.sets import Capacity, Sets
from kroute.kernel.node_kernel import ClientName, NodeKernel
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, SetEntry
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings

if TYPE_CHECKING:  # few nodes have policies
    from kroute.model.policy_plan import Answer, Extra, GroupKey, PodGroups, PolicyChange, PortRange

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


class Removable(Protocol):
    """Something of a backend that can be undone."""

    async def remove(self, report: CleanupReport) -> None:
        """Remove all of it that kroute has made in any run."""
        ...


class Firewall(Removable, Protocol):
    """The sets of both families, and the rules that look them up. Set entries change with Services, rules do not.

    An element is a `SetEntry`; its first address says its family. Unless it says otherwise, a method raises KernelError
    when it cannot reach the kernel.
    """

    async def ensure_sets(self) -> list[str]:
        """Make the sets that are missing, and replace those of another kind by empty ones.

        A set with less room than it should have gets that room, and keeps its elements. Returns one sentence for each
        set that was not as it should be. To replace a set, the rules that look it up may have to be deleted; the caller
        calls `ensure_rules` later, when the sets are filled.
        """
        ...

    def capacity(self, family: Family, which: AddressSet) -> Capacity | None:
        """How much the set can hold since it was last made, found or enlarged; None before that."""
        ...

    def elements(self) -> AsyncIterator[list[SetEntry]]:
        """All elements of all sets, in parts of some hundreds. The caller may change elements between two parts."""
        ...

    async def change_elements(self, changes: Mapping[SetEntry, bool]) -> Mapping[SetEntry, str]:
        """Add elements to their sets (True) or delete them (False).

        A change that the kernel already has is not a failure. A full set grows, up to `Room.most`; no packet meets it
        empty meanwhile. Returns the elements that the kernel refuses, each with a sentence that says why; the other
        elements are changed all the same.
        """
        ...

    async def ensure_rules(self, node: NodeFacts) -> list[str]:
        """Write all rules for this node that are missing or wrong. The sets must exist and be filled.

        It may take long (with iptables, seconds for each family while another program holds the lock), and the caller
        may change elements meanwhile. Returns one sentence for each repair of what
        another program has changed. Rules that are written for the first time, or because the facts changed, are logged
        instead. Rules that the kernel does not support are logged once, with what the node then lacks; this raises
        nothing, and the other rules are written.
        """
        ...

    def enforces(self, family: Family) -> bool:
        """Whether the rules that refuse clients outside the source ranges (RESTRICTED, SOURCE_RANGE) exist.

        This is what the last `ensure_rules` found or wrote; False before the first. To find existing rules takes no
        lock.
        """
        ...

    def rules_hindered_by(self) -> str:
        """What prevented the last `ensure_rules` from writing rules that the kernel supports, as a sentence; or "".

        After a sentence, another attempt soon is worthwhile.
        """
        ...

    async def is_untouched(self) -> bool:
        """Whether no other program has changed a set or rule since this object last read or wrote all of them.

        A resync would then find nothing, and may be skipped. False if the backend cannot know.
        """
        ...

    async def looks_untouched(self, count: SetCount) -> bool:
        """Whether no other program seems to have changed a set since the last resync or call; see `LastLook`.

        It must cost much less than reading the sets. False after a resync that could not write everything.
        """
        ...

    async def are_rules_untouched(self) -> bool:
        """Whether no other program has changed a rule since the last `ensure_rules`. It must cost much less."""
        ...

    async def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever another program has, or may have, changed a set or rule; a resync is due then.

        Runs until it is cancelled. Where the kernel reports no such changes, it returns at once.
        """
        ...

    async def is_present(self) -> bool:
        """Whether the kernel has sets of kroute's, from any run."""
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


AllowedPeers: TypeAlias = "Iterable[tuple[GroupKey, Iterator[tuple[str, PortRange]]]]"
"""Groups of pods with what they allow: networks of peers, each with a range of ports."""


LOGGED_A_SECOND, LOGGED_AT_ONCE = 10, 20
"""Packets that the rule of a group logs at most, of each family."""


class PolicyFirewall(Removable, Protocol):
    """What the firewall has of network policies. A method raises KernelError when it cannot do all that it should.

    If the settings say so, packets are logged to a group of nfnetlink_log before they are dropped, with the name of the
    group of pods as the prefix. A kernel that cannot do that still drops them; that is logged once.
    """

    async def write(self, change: PolicyChange) -> None:
        """Make a change of the plan. After a KernelError `restore` has to find out what was made."""
        ...

    async def restore(self, allowed: AllowedPeers, pods: Mapping[str, PodGroups], extra: Extra) -> list[str]:
        """Read everything, and write what differs from the plan; returns what was wrong, one sentence each.

        `extra` holds from now on, also after a `write`.
        """
        ...

    async def change_cut(self, added: Collection[Answer], removed: Collection[Answer]) -> None:
        """Make this change of `Extra.cut`, which the caller makes in that, too."""
        ...

    def group_name(self, key: GroupKey) -> str:
        """The group's name in the backend's own tools, for messages to people, and before its logged packets."""
        ...

    async def refused(self) -> Mapping[str, int]:
        """How many packets each group has refused since its rules were written, by its name. Changes nothing."""
        ...

    async def is_untouched(self) -> bool:
        """Whether no other program has changed anything since the last `restore`."""
        ...

    async def follow(self, changed: Callable[[], None]) -> None:
        """The same as `Firewall.follow`."""
        ...


class Backend(NamedTuple):
    """A way to program the kernel's firewall, and what it needs before it can be used.

    `clients` are the kernel clients that must be open; `presence_clients` are those that `is_present` needs, which
    avoids loading the backend. `modules` are kernel modules with their purpose. `overrules`: no rule of iptables drops
    a packet that its rules accept. `capabilities` are needed in addition to NET_ADMIN, with their purpose.
    `missing_tools` returns a sentence about a missing program, if any; it ends in `; ` and the next step.
    `is_present` says whether any run has left something, of network policies too, and `has_policies` whether of these.
    """

    clients: tuple[ClientName, ...]
    presence_clients: tuple[ClientName, ...]
    modules: Mapping[str, str]
    overrules: bool
    capabilities: Mapping[str, str]
    missing_tools: Callable[[], list[str]]
    make: Callable[[Settings, NodeKernel], Firewall]
    make_policies: Callable[[Settings, NodeKernel], PolicyFirewall]
    is_present: Callable[[Settings, NodeKernel], Awaitable[bool]]
    has_policies: Callable[[NodeKernel], Awaitable[bool]]
