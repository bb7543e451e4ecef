"""How long each test took in its last run, for scheduling.

Without a last run, as in a new clone, `usual_durations.json` says how long a test of each file usually takes. Running
this module writes that file from the durations of the last run.
"""

import json
import os
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Self

from tests.lab.feeds import API
from tests.lab.places import leftovers
from tests.lab.vm.kernels import KERNELS

UNKNOWN = 1.0
"""The seconds assumed for a test if nothing is known of its file."""
_SUFFIX = re.compile(rf"(@({'|'.join(KERNELS)}))?(@{API})?$")
USUAL = Path(__file__).with_name("usual_durations.json")


class Durations:
    """The seconds of each test in its last run, kept in the clone."""

    def __init__(self, known: dict[str, float], usual: dict[str, float]) -> None:
        self._known = known
        self._usual = usual
        self._now: defaultdict[str, float] = defaultdict(float)

    @classmethod
    def read(cls) -> Self:
        """Return the durations of the last runs, and the usual ones."""
        path = cls._path()
        return cls(json.loads(path.read_text()) if path.exists() else {}, json.loads(USUAL.read_text()))

    def add(self, nodeid: str, seconds: float) -> None:
        """Add the duration of a test's phase."""
        self._now[nodeid] += seconds

    def of(self, nodeid: str) -> float:
        """Return the seconds that a test took last, or usually takes; elsewhere, if it has not run so yet."""
        usual = self._usual.get(_file_and_suffix(nodeid)) or self._usual.get(file_of(nodeid), UNKNOWN)
        return self._known.get(nodeid) or usual

    def by_file(self) -> dict[str, float]:
        """Return the average of the last durations of the tests of each lab file."""
        files: defaultdict[str, list[float]] = defaultdict(list)
        for nodeid, seconds in self._known.items():
            files[_file_and_suffix(nodeid)].append(seconds)
        return {name: round(fmean(files[name]), 1) for name in sorted(files)}

    def write(self) -> None:
        """Store the durations for the next run."""
        unfinished = self._path().with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps({**self._known, **self._now}, indent=0))
        unfinished.replace(self._path())

    @staticmethod
    def _path() -> Path:
        return leftovers() / "durations.json"


def file_of(nodeid: str) -> str:
    """Return the path of a test's file."""
    return nodeid.partition("::")[0]


def without_suffix(nodeid: str) -> str:
    """Return a test's own name, without the kernel and feed with which it ran."""
    return _SUFFIX.sub("", nodeid)


def _file_and_suffix(nodeid: str) -> str:
    """Return the key for tests of similar duration: the file, and the kernel or feed if it is not the first."""
    return file_of(nodeid) + nodeid[len(without_suffix(nodeid)) :]


if __name__ == "__main__":
    USUAL.write_text(json.dumps(Durations.read().by_file(), indent=2) + "\n")
