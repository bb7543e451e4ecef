"""Makes the table of each family, and writes its sets, chains and rules.

A family that the kernel does not support is reported once, with what the node lacks without it. The other family is
written all the same. All changes of a table are one transaction: no packet meets half of them. The table is kroute's
alone, so an object in it that kroute has not written is wrong, too.
"""

import errno
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby

import structlog

from kroute.firewall.nftables.names import DEFINITIONS, TABLE, TABLES, listed
from kroute.firewall.nftables.rules import NftablesRules, family_rules
from kroute.firewall.rule_writer import RuleWriter
from kroute.kernel.clients import NftablesClient
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.nftables.expressions import is_as_wanted
from kroute.kernel.nftables.objects import (
    AddChain,
    AddRule,
    AddSet,
    AddTable,
    DeleteChain,
    DeleteSet,
    DeleteTable,
    FlushChain,
    NftChange,
    NftRule,
    NftSet,
    Table,
    TableState,
)
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings

ANONYMOUS = "__"
"""The names of sets that belong to one rule begin so. The kernel deletes them with it."""

log = structlog.get_logger(__name__)

WITHOUT = (
    "nothing is masqueraded in this family, ports with loadBalancerSourceRanges are not served, and ports of the node"
    " itself answer on VIPs, until its rules are there; trying again"
)
UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})
"""How the kernel refuses a table of a family that it does not have."""
TRIAL = f"{TABLE}-trial"
"""The table with which the kernel is asked what it supports. It never exists."""


class NftablesTables(RuleWriter[Family]):
    """Owns the tables: the part of the backend that makes them, and writes their rules."""

    hindering = frozenset({errno.EINTR, errno.EAGAIN, errno.EBUSY})

    def __init__(self, settings: Settings, nftables: NftablesClient) -> None:
        super().__init__()
        self._settings = settings
        self.nftables = nftables
        self._unsupported: dict[Family, str] = {}

    @property
    def supported(self) -> list[Family]:
        """The families whose tables the kernel could make, when that was last tried."""
        return [family for family in Family if family not in self._unsupported]

    def enforces(self, family: Family) -> bool:
        """Whether the rules of the family were right after they were last checked or written."""
        return family in self.standing

    async def ensure_sets_of(self, family: Family) -> tuple[list[NftSet], list[str]]:
        """Make the table, and the sets that are missing or of another kind; returns those, and what was wrong.

        KernelError if the kernel refuses for another reason than that it does not have the family.
        """
        table = TABLES[family]
        state = await self.nftables.read(table)
        present = state.sets if state is not None else {}
        missing = [definition for definition in DEFINITIONS.values() if definition.name not in present]
        misshapen = [wanted for wanted in DEFINITIONS.values() if present.get(wanted.name, wanted) != wanted]
        changes: list[NftChange] = [AddTable()] if state is None else []
        if misshapen and state is not None:
            changes += map(FlushChain, state.chains)
            changes += [DeleteSet(definition.name) for definition in misshapen]
            self.standing.discard(family)
        made = missing + misshapen
        changes += [AddSet(definition) for definition in made]
        failures = await self.nftables.transact(table, changes) if changes else []
        if any(failure.errno in UNSUPPORTED for failure in failures):
            self._report_unsupported(family, failures[0])
            return [], []
        self._unsupported.pop(family, None)
        _raise_first(table, failures)
        return made, [
            *(f"set {table} {definition.name} was missing" for definition in missing),
            *(f"set {table} {definition.name} was of another kind" for definition in misshapen),
        ]

    async def ensure_rules(self, node: NodeFacts) -> list[str]:
        """Write all rules that are missing or wrong; returns the drift. Their sets must exist and be filled."""
        self.hindered_by = ""
        drift = []
        for family in self.supported:
            rewrite = partial(self._rewrite, family_rules(self._settings, family, node))
            found = await self.keep(family, rewrite, WITHOUT, family=family.value)
            drift += [f"table {TABLES[family]}: {what}" for what in found]
        return drift

    async def rules(self, family: Family, node: NodeFacts) -> NftablesRules:
        return family_rules(self._settings, family, node)

    async def rule_differences(self, family: Family, node: NodeFacts) -> list[str]:
        """What is wrong with the rules in the kernel, or why they cannot be read, one sentence each."""
        table = TABLES[family]
        try:
            state = await self.nftables.read(table)
        except KernelError as error:
            return [f"table {table}: {error}"]
        if state is None:
            return [f"table {table}: there is none"]
        return [f"table {table}: {what}" for what in differences(state, family_rules(self._settings, family, node))]

    async def present(self) -> list[Family]:
        """The families whose tables exist, from any run."""
        return await listed(self.nftables, TABLES)

    async def remove(self, report: CleanupReport) -> None:
        self.standing.clear()
        for family in await self.present():
            table = TABLES[family]
            with report.step(f"table {table}"):
                _raise_first(table, await self.nftables.transact(table, [DeleteTable()]))
                report.add(f"delete table {table}")

    async def unsupported(self, family: Family) -> list[str]:
        """The kernel's errors for what it cannot make of the family's table, one sentence each. Makes nothing."""
        rules = family_rules(self._settings, family, NodeFacts(self._settings.node_name))
        table = Table(family.number, TRIAL)
        refused = await self.nftables.validate(table, [AddTable()])
        refused = refused or await self.nftables.validate(table, [AddTable(), *_everything(rules)])
        return [f"{_sentence(TABLES[family], failure)}; {_next_step(failure)}" for failure in refused]

    async def _rewrite(self, rules: NftablesRules) -> tuple[object, list[str]]:
        """Write the rules if something is wrong, and say what was."""
        table = TABLES[rules.family]
        state = await self.nftables.read(table)
        if state is None:
            why = "another program has deleted it; making it at the next resync"
            raise KernelError(f"there is no table {table}: {why}")
        wrong = differences(state, rules)
        if wrong and state.is_dormant:  # alone: the kernel refuses new base chains in the same transaction
            _raise_first(table, await self.nftables.transact(table, [AddTable()]))
        if wrong:
            _raise_first(table, await self.nftables.transact(table, rewriting(state, rules)))
        return rules.kernel_rules, wrong

    def _report_unsupported(self, family: Family, failure: Failure[NftChange]) -> None:
        self.standing.discard(family)
        if family not in self._unsupported:
            self._unsupported[family] = sentence = _sentence(TABLES[family], failure)
            log.warning("rules.failed", family=family.value, error=sentence, next_step=WITHOUT)


def _everything(rules: NftablesRules) -> Iterable[NftChange]:
    return [
        *(AddSet(definition) for definition in DEFINITIONS.values()),
        *(AddChain(chain) for chain in rules.kernel_chains.values()),
        *(AddRule(rule) for rule in rules.kernel_rules),
    ]


def _raise_first(table: Table, failures: Sequence[Failure[NftChange]]) -> None:
    for failure in failures:
        raise KernelError(f"{_sentence(table, failure)}; trying again", errno=failure.errno)


def _sentence(table: Table, failure: Failure[NftChange]) -> str:
    return f"table {table}: {failure}"


def _next_step(failure: Failure[NftChange]) -> str:
    if isinstance(failure.change, AddTable):
        return "load the module nf_tables, or set `--firewall iptables`"
    return "use a kernel with all of nf_tables (CONFIG_NF_TABLES, CONFIG_NFT_*), or set `--firewall iptables`"


def differences(state: TableState, rules: NftablesRules) -> list[str]:
    """What is wrong with the chains and rules, one sentence each, and which sets are not kroute's."""
    if not state.chains:
        return ["it has no rules"]
    chains = rules.kernel_chains
    found_rules = _by_chain(rule for _, rule in state.rules)
    found = ["it is dormant"] if state.is_dormant else []
    for wanted in rules.chains:
        if wanted.name not in state.chains:
            found.append(f"chain {wanted.name} is missing")
        elif state.chains[wanted.name] != chains[wanted.name]:
            found.append(f"chain {wanted.name} has another type, hook, priority or policy")
        elif not are_same(found_rules.get(wanted.name, []), wanted.kernel_rules):
            found.append(f"chain {wanted.name} has other rules")
    found += [f"chain {name} is not kroute's" for name in state.chains if name not in chains]
    return found + [f"set {name} is not kroute's" for name in _foreign_sets(state)]


def rewriting(state: TableState, rules: NftablesRules) -> list[NftChange]:
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
    ours = {definition.name for definition in DEFINITIONS.values()}
    return [name for name in state.sets if name not in ours and not name.startswith(ANONYMOUS)]


def are_same(found: Sequence[NftRule], wanted: Sequence[NftRule]) -> bool:
    return len(found) == len(wanted) and all(
        one.comment == other.comment
        and len(one.expressions) == len(other.expressions)
        and all(map(is_as_wanted, one.expressions, other.expressions))
        for one, other in zip(found, wanted, strict=True)
    )


def _by_chain(rules: Iterable[NftRule]) -> Mapping[str, list[NftRule]]:
    ordered = sorted(rules, key=lambda rule: rule.chain)  # stable: a chain's rules stay in their order
    return {name: list(of_chain) for name, of_chain in groupby(ordered, key=lambda rule: rule.chain)}
