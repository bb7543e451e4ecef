"""The tests that machines still have to run, file by file, the longest first; on which kernel, and fed how.

A machine gets a file when it has nearly finished the previous one. So all machines end at about the same time, whatever
their speed.
"""

from collections import defaultdict, deque
from collections.abc import Sequence

import pytest

from tests.lab.feeds import API, MANIFESTS, wanted
from tests.lab.vm.durations import Durations, file_of
from tests.lab.vm.kernels import Kernel


class Work:
    """The work of the machines of one kernel with one feed.

    A file's tests stay together and in order, as they may share fixtures.
    """

    def __init__(
        self,
        kernel: Kernel,
        items: Sequence[pytest.Item],
        durations: Durations,
        suffix: str = "",
        feed: str = MANIFESTS,
    ) -> None:
        self.kernel = kernel
        self.feed = feed
        self.suffix = suffix
        """The suffix of its tests' names, if they run in another work as well."""
        self.has_been_up = False
        """Whether any machine with this kernel has come up. If the first fails, no other is expected to."""
        self._count = len(items)
        self._durations = durations
        files: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            files[file_of(item.nodeid)].append(item)
        self._waiting = deque(sorted(files.values(), key=self._seconds, reverse=True))
        self.files = tuple(files)

    def __len__(self) -> int:
        """The number of all tests, including finished ones."""
        return self._count

    def __bool__(self) -> bool:
        """Whether any tests are left to be given out."""
        return bool(self._waiting)

    @property
    def seconds_waiting(self) -> float:
        """How many seconds one machine would need for the tests that have not been given out."""
        return sum(map(self._seconds, self._waiting))

    def take(self) -> list[pytest.Item]:
        """Take the next file's tests; empty if none is left."""
        return self._waiting.popleft() if self._waiting else []

    def give_back(self, items: list[pytest.Item]) -> None:
        """Return the unfinished tests of a lost machine. The next free machine runs them."""
        if items:
            self._waiting.appendleft(items)

    def take_all(self) -> list[pytest.Item]:
        """Take all remaining tests."""
        items = [item for file in self._waiting for item in file]
        self._waiting.clear()
        return items

    def _seconds(self, items: list[pytest.Item]) -> float:
        return sum(self._durations.of(item.nodeid + self.suffix) for item in items)


def matrix(items: list[pytest.Item], kernels: list[Kernel], durations: Durations) -> list[Work]:
    """Distribute the lab's tests: the first kernel runs all that it can, other kernels those marked `every_kernel`.

    Tests marked `legacy` run on the first kernel that has legacy tables; if none has, they must not be among `items`.
    A kernel of the same binary as the first is not another one. If two feeds are wanted, tests marked `each_feed` run
    once more, by the second.
    """
    first = kernels[0]
    legacy = next((kernel for kernel in kernels if kernel.has_legacy), first)
    own: dict[str, list[pytest.Item]] = {first.name: [], legacy.name: []}
    for item in items:
        own[(legacy if item.get_closest_marker("legacy") else first).name].append(item)
    feed, *second = wanted()
    work = [Work(kernel, own[kernel.name], durations, feed=feed) for kernel in kernels if own.get(kernel.name)]
    for kernel in kernels:
        if kernel.directory != first.directory:
            once_more = [it for it in _marked("every_kernel", items) if it not in own.get(kernel.name, [])]
            work += [Work(kernel, once_more, durations, f"@{kernel.name}", feed)] if once_more else []
    for kernel in kernels if second else []:
        again = _marked("each_feed", own.get(kernel.name, []))
        work += [Work(kernel, again, durations, f"@{API}", *second)] if again else []
    return work


def _marked(marker: str, items: list[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if item.get_closest_marker(marker)]
