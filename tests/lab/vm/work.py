"""The tests that machines still have to run, file by file, the longest first.

A machine gets a file when it has nearly done with the one before: so all end together, however fast each was.
"""

from collections import defaultdict, deque
from collections.abc import Sequence

import pytest

from tests.lab.vm.durations import Durations, file_of
from tests.lab.vm.kernels import Kernel


class Work:
    """What one kernel's machines have to do. A file's tests stay together and in order, as they may share fixtures."""

    def __init__(self, kernel: Kernel, items: Sequence[pytest.Item], durations: Durations, suffix: str = "") -> None:
        self.kernel = kernel
        self.suffix = suffix
        """What the names of its tests end in, where another kernel runs them as well."""
        self.has_been_up = False
        """Whether any machine with this kernel has come up; if none has, no other will."""
        self._count = len(items)
        self._durations = durations
        files: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            files[file_of(item.nodeid)].append(item)
        self._waiting = deque(sorted(files.values(), key=self._seconds, reverse=True))
        self.files = tuple(files)

    def __len__(self) -> int:
        """How many tests there were at first."""
        return self._count

    def __bool__(self) -> bool:
        """Whether any is left to be given out."""
        return bool(self._waiting)

    @property
    def seconds_waiting(self) -> float:
        """How long one machine would take for what has not been given out."""
        return sum(map(self._seconds, self._waiting))

    def take(self) -> list[pytest.Item]:
        """Take the next file's tests; none if there is no more."""
        return self._waiting.popleft() if self._waiting else []

    def give_back(self, items: list[pytest.Item]) -> None:
        """Have tests that a lost machine still owed run by the next machine that is free."""
        if items:
            self._waiting.appendleft(items)

    def take_all(self) -> list[pytest.Item]:
        """Take everything that is left."""
        items = [item for file in self._waiting for item in file]
        self._waiting.clear()
        return items

    def _seconds(self, items: list[pytest.Item]) -> float:
        return sum(self._durations.of(item.nodeid + self.suffix) for item in items)


def matrix(items: list[pytest.Item], kernels: list[Kernel], durations: Durations) -> list[Work]:
    """Divide the lab's tests among kernels: the first runs all, the others those marked `every_kernel`."""
    first, *others = kernels
    everywhere = [item for item in items if item.get_closest_marker("every_kernel")]
    work = [Work(first, items, durations)]
    work += [Work(kernel, everywhere, durations, f"@{kernel.name}") for kernel in others if everywhere]
    return work
