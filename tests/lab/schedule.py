"""Which tests go to which machine: files stay whole, and the loads are even by the durations of the last run."""

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest

from tests.lab.machine import cache

UNKNOWN = 2.0
"""Seconds that a test is taken for when it has never run."""


class Durations:
    """Seconds that each test took when it last ran, kept in the cache."""

    def __init__(self, known: dict[str, float]) -> None:
        self._known = known
        self._now: defaultdict[str, float] = defaultdict(float)

    @classmethod
    def read(cls) -> Self:
        """Return what the last runs left; nothing, when there were none."""
        path = cls._path()
        return cls(json.loads(path.read_text()) if path.exists() else {})

    def add(self, nodeid: str, seconds: float) -> None:
        """Count a phase of a test."""
        self._now[nodeid] += seconds

    def of(self, nodeid: str) -> float:
        """Return what a test took last."""
        return self._known.get(nodeid, UNKNOWN)

    def write(self) -> None:
        """Keep them for the next run."""
        unfinished = self._path().with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps({**self._known, **self._now}, indent=0))
        unfinished.replace(self._path())

    @staticmethod
    def _path() -> Path:
        return cache() / "durations.json"


def shares(items: Sequence[pytest.Item], count: int, durations: Durations) -> list[list[pytest.Item]]:
    """Divide `items` into at most `count` lists, the longest file first, each to the list with the least to do.

    A file's tests stay together and in order, since they may share fixtures.
    """
    files: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    seconds = {name: sum(durations.of(item.nodeid) for item in members) for name, members in files.items()}
    loads: list[tuple[float, list[pytest.Item]]] = [(0.0, []) for _ in range(min(count, len(files)))]
    for name in sorted(files, key=seconds.__getitem__, reverse=True):
        least = min(range(len(loads)), key=lambda index: loads[index][0])
        load, members = loads[least]
        loads[least] = (load + seconds[name], [*members, *files[name]])
    return [members for _, members in loads]
