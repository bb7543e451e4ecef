"""Which of the tests that repeat each other a run has: a part of them, drawn by a seed that its summary names.

A thorough run has all of them. So has a run of named files or tests, and one with -k: it asks for these.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

import pytest

from tests.lab.thoroughness import drawn, is_thorough, seed


class Draw:
    """The choice of one run; without a seed it is everything."""

    STASHED = pytest.StashKey["Draw"]()
    """The stash key, in pytest's configuration, for the choice of its run."""

    def __init__(self, by: int | None) -> None:
        self._by = by
        self._all, self._drawn = Counter[str](), Counter[str]()

    @classmethod
    def of(cls, config: pytest.Config) -> "Draw":
        """Return the choice of a run, the same each time."""
        is_of_everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
        draws = is_of_everything and not is_thorough() and not hasattr(config, "workerinput")
        return config.stash.setdefault(cls.STASHED, cls(seed() if draws else None))

    def part(
        self, items: Iterable[pytest.Item], one_of: int, what: str, group: Callable[[pytest.Item], str]
    ) -> list[pytest.Item]:
        """Return one of so many of the tests of each group. The summary says how many there are of `what` they are."""
        groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            groups[group(item)].append(item)
        if self._by is None:
            return [item for members in groups.values() for item in members]
        chosen = [
            item for name, members in groups.items() for item in drawn(members, one_of=one_of, by=f"{self._by} {name}")
        ]
        self._all[what] += sum(map(len, groups.values()))
        self._drawn[what] += len(chosen)
        return chosen

    def said(self) -> str:
        """Return a line for the summary; empty if nothing was drawn."""
        if not any(self._all.values()):
            return ""
        parts = ", ".join(f"{self._drawn[what]} of {count} {what}" for what, count in (+self._all).items())
        return f"seed {self._by} has drawn {parts}; with KROUTE_LAB_SEED={self._by} it draws them again"


def group_of(item: pytest.Item) -> str:
    """Return the group that a test's marker `drawn` names in its file; else its name without parameters."""
    function = item.nodeid.partition("[")[0]
    marker = item.get_closest_marker("drawn")
    return f"{file_of(item)}::{marker.args[1]}" if marker and len(marker.args) > 1 else function


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
