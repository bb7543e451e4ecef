"""The names and definitions of the tables and their sets: each AddressSet has one in each table."""

from collections.abc import Mapping
from functools import lru_cache

from kroute.firewall.sets import SHAPES
from kroute.kernel.clients import NftablesClient
from kroute.kernel.nftables.objects import NftSet, Table
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet

TABLE = "kroute"
"""The name of the table, in both families. Whatever is in it is kroute's."""

TABLES = {family: Table(family.number, TABLE) for family in Family}

POLICY_TABLES = {family: Table(family.number, f"{TABLE}-policies") for family in Family}
"""Those of network policies."""


@lru_cache(64)
def set_name(which: AddressSet) -> str:
    """The set's name, which is the same in both tables.

    The set of SOURCE_RANGE was called `source-range` while it had intervals. It has another name now, so that the old
    set stays, with the rules that look into it, until the rules for the new one take their place.
    """
    return "source-network" if which is AddressSet.SOURCE_RANGE else which.lower()


@lru_cache(64)
def full_name(family: Family, which: AddressSet) -> str:
    """The set's name for people, as `nft list set` takes it."""
    return f"{TABLES[family]} {set_name(which)}"


DEFINITIONS = {which: NftSet(set_name(which), tuple(map(str, parts))) for which, parts in SHAPES.items()}
"""The sets, as they are made in both tables."""

BY_NAME = {definition.name: which for which, definition in DEFINITIONS.items()}


async def listed(nftables: NftablesClient, tables: Mapping[Family, Table]) -> list[Family]:
    """The families of which these tables exist, from any run."""
    names = await nftables.tables()
    return [family for family, table in tables.items() if table.listed_as in names]
