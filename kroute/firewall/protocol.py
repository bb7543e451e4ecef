"""What a backend offers. Nothing above this folder knows more of the kernel's firewall."""

from collections.abc import AsyncIterator, Collection, Mapping
from typing import NamedTuple, Protocol

from kroute.firewall.packets import Rules
from kroute.firewall.sets import Sets
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, SetEntry
from kroute.reconcile.cleanup_report import CleanupReport


class Prerequisites(NamedTuple):
    """What the kernel must offer to a backend.

    `name` is that of the check. `missing` has, for each family, one sentence for each thing that is missing; each ends
    in `; ` and the next step. `fulfilled` says what is there when nothing is missing.
    """

    name: str
    missing: Mapping[Family, list[str]]
    fulfilled: str


class Firewall(Protocol):
    """The sets of both families, and the rules that look into them. Set entries change with Services, rules do not.

    An element is a `SetEntry`: its family is that of its first address. Every method raises KernelError when the kernel
    cannot be spoken to, unless it says otherwise.
    """

    async def ensure_sets(self) -> list[str]:
        """Make the sets that are missing, and make anew those that cannot hold what they should, which are then empty.

        Returns one sentence for each set that was not as it should be. Rules that look into a set may have to go for
        it; `ensure_rules` is called later, when the sets are filled.
        """
        ...

    def elements(self) -> AsyncIterator[list[SetEntry]]:
        """Every element of every set, in parts of some hundreds. Elements may be changed between two parts."""
        ...

    async def change_elements(self, changes: Mapping[SetEntry, bool]) -> Mapping[SetEntry, str]:
        """Put elements into their sets (True) or take them out (False).

        What is so already is no failure. Returns the elements that the kernel refuses, each with a sentence that says
        why; they do not stop the others.
        """
        ...

    async def ensure_rules(self, node: NodeFacts) -> list[str]:
        """Make all rules right for this node. The sets must be there, and filled.

        Returns one sentence for each rule that somebody else has changed. What is written for the first time, or
        because the facts changed, is logged. So is what the kernel does not offer, once, with what the node lacks
        without it; that raises nothing and stops none of the other rules.
        """
        ...

    async def is_present(self) -> bool:
        """Whether the kernel has sets of kroute's, from whatever run."""
        ...

    async def remove(self, report: CleanupReport) -> None:
        """Remove everything that kroute has made, from whatever run."""
        ...

    def set_name(self, family: Family, which: AddressSet) -> str:
        """What the backend's own tools call a set. For people only."""
        ...

    async def read_sets(self, family: Family, sets: Collection[AddressSet] = tuple(AddressSet)) -> Sets:
        """The elements that the kernel has now; a set that is missing is empty. Changes nothing."""
        ...

    async def rules(self, family: Family, node: NodeFacts) -> Rules:
        """The rules that `ensure_rules` writes for this node: packets can be sent through them."""
        ...

    async def rule_differences(self, family: Family, node: NodeFacts) -> list[str]:
        """What `ensure_rules` would find wrong, or cannot find out, one sentence each. Changes nothing."""
        ...

    async def prerequisites(self) -> Prerequisites:
        """What the kernel must offer. May load modules, as a start does."""
        ...
