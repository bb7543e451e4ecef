"""What is not as it should be in a table. Everything in it is kroute's, so whatever else is there is wrong too."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from kroute.firewall.nftables.names import DEFINITIONS
from kroute.firewall.nftables.rules import FamilyRules
from kroute.kernel.nftables.expressions import is_as_wanted
from kroute.kernel.nftables.objects import (
    AddChain,
    AddRule,
    DeleteChain,
    DeleteSet,
    FlushChain,
    NftChange,
    Rule,
    SetDefinition,
    TableState,
)

ANONYMOUS = "__"
"""The names of sets that belong to one rule begin so. The kernel deletes them with it."""


def missing_sets(state: TableState) -> list[SetDefinition]:
    return [it for it in DEFINITIONS.values() if it.name not in state.sets]


def sets_of_another_kind(state: TableState) -> list[SetDefinition]:
    """The sets that must be made anew, as they should be."""
    return [it for it in DEFINITIONS.values() if it.name in state.sets and state.sets[it.name] != it]


def differences(state: TableState, rules: FamilyRules) -> list[str]:
    """What is wrong with the chains and rules, one sentence each, and which sets are not kroute's."""
    if not state.chains:
        return ["it has no rules"]
    chains = rules.kernel_chains
    found_rules = _by_chain(rule for _, rule in state.rules)
    found = ["it is dormant"] if state.is_dormant else []
    for it in rules.chains:
        if it.name not in state.chains:
            found.append(f"chain {it.name} is missing")
        elif state.chains[it.name] != chains[it.name]:
            found.append(f"chain {it.name} has another type, hook, priority or policy")
        elif not _are_same(found_rules.get(it.name, []), it.kernel_rules):
            found.append(f"chain {it.name} has other rules")
    found += [f"chain {name} is not kroute's" for name in state.chains if name not in chains]
    return found + [f"set {name} is not kroute's" for name in _foreign_sets(state)]


def rewriting(state: TableState, rules: FamilyRules) -> list[NftChange]:
    """The changes that give a table these chains and rules, in one transaction. Its own sets must exist."""
    wanted = rules.kernel_chains
    wrong = [name for name, chain in state.chains.items() if wanted.get(name) != chain]
    return [
        *(FlushChain(name) for name in state.chains),
        *(DeleteChain(name) for name in wrong),
        *(DeleteSet(name) for name in _foreign_sets(state)),
        *(AddChain(chain) for name, chain in wanted.items() if name in wrong or name not in state.chains),
        *(AddRule(rule) for rule in rules.kernel_rules),
    ]


def _foreign_sets(state: TableState) -> list[str]:
    ours = {it.name for it in DEFINITIONS.values()}
    return [name for name in state.sets if name not in ours and not name.startswith(ANONYMOUS)]


def _are_same(found: Sequence[Rule], wanted: Sequence[Rule]) -> bool:
    return len(found) == len(wanted) and all(
        one.comment == other.comment
        and len(one.expressions) == len(other.expressions)
        and all(map(is_as_wanted, one.expressions, other.expressions))
        for one, other in zip(found, wanted, strict=True)
    )


def _by_chain(rules: Iterable[Rule]) -> Mapping[str, list[Rule]]:
    ordered = sorted(rules, key=lambda rule: rule.chain)  # stable: a chain's rules stay in their order
    return {name: list(of_chain) for name, of_chain in groupby(ordered, key=lambda rule: rule.chain)}
