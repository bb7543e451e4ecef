"""Which tests go to which machine: files stay whole, and the loads are even by the durations of the last run.

Where there was none, as in a new clone, `usual_durations.json` says what a test of each file usually takes. Running
this module writes that file from the durations of the last run.
"""

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Self

import pytest

from tests.lab.machine import cache

UNKNOWN = 2.0
"""Seconds that a test is taken for when nothing is known of its file."""
USUAL = Path(__file__).with_name("usual_durations.json")


class Durations:
    """Seconds that each test took when it last ran, kept in the cache."""

    def __init__(self, known: dict[str, float], usual: dict[str, float]) -> None:
        self._known = known
        self._usual = usual
        self._now: defaultdict[str, float] = defaultdict(float)

    @classmethod
    def read(cls) -> Self:
        """Return what the last runs left, and what is usual."""
        path = cls._path()
        return cls(json.loads(path.read_text()) if path.exists() else {}, json.loads(USUAL.read_text()))

    def add(self, nodeid: str, seconds: float) -> None:
        """Count a phase of a test."""
        self._now[nodeid] += seconds

    def of(self, nodeid: str) -> float:
        """Return what a test took last, or usually takes."""
        return self._known.get(nodeid) or self._usual.get(file_of(nodeid), UNKNOWN)

    def by_file(self) -> dict[str, float]:
        """Return what a test of each lab file took last, on average."""
        files: defaultdict[str, list[float]] = defaultdict(list)
        for nodeid, seconds in self._known.items():
            files[file_of(nodeid)].append(seconds)
        return {name: round(fmean(files[name]), 1) for name in sorted(files)}

    def write(self) -> None:
        """Keep them for the next run."""
        unfinished = self._path().with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps({**self._known, **self._now}, indent=0))
        unfinished.replace(self._path())

    @staticmethod
    def _path() -> Path:
        return cache() / "durations.json"


def file_of(nodeid: str) -> str:
    """Return the path of a test's file."""
    return nodeid.partition("::")[0]


def shares(items: Sequence[pytest.Item], count: int, durations: Durations) -> list[list[pytest.Item]]:
    """Divide `items` into at most `count` lists, the longest file first, each to the list with the least to do.

    A file's tests stay together and in order, since they may share fixtures.
    """
    files: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[file_of(item.nodeid)].append(item)
    seconds = {name: sum(durations.of(item.nodeid) for item in members) for name, members in files.items()}
    loads: list[tuple[float, list[pytest.Item]]] = [(0.0, []) for _ in range(min(count, len(files)))]
    for name in sorted(files, key=seconds.__getitem__, reverse=True):
        least = min(range(len(loads)), key=lambda index: loads[index][0])
        load, members = loads[least]
        loads[least] = (load + seconds[name], [*members, *files[name]])
    return [members for _, members in loads]


if __name__ == "__main__":
    USUAL.write_text(json.dumps(Durations.read().by_file(), indent=2) + "\n")
