"""The tests that machines still have to run, file by file, the longest first; on which kernel, and fed how.

A machine gets a file when it begins the previous one. So all machines end at about the same time, whatever their speed.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

import pytest

from tests.lab.feeds import MANIFESTS, wanted
from tests.lab.thoroughness import is_thorough
from tests.lab.vm.durations import Durations, file_of
from tests.lab.vm.kernels import NEEDS, Kernel


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
        """The suffix of its tests' names, by which they differ from those of other works."""
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
    """Distribute the lab's tests: the first kernel runs all that it can, others what is marked.

    Tests marked `legacy` or `nftables` run on kernels that have what they need; some kernel must have it.
    Those marked `each_firewall` also run on the first kernel of another backend, those marked `every_kernel` on every
    other binary. If two feeds are wanted, tests marked `each_feed` run by the second, and in a thorough run by both.
    Those marked `feed_in_turn` change from one feed to the other with each kernel, and so run no more often.
    """
    feeds = wanted()
    work: defaultdict[tuple[int, str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        own, *others = runs_on = _runs_on(item, kernels)
        if len(feeds) > 1 and item.get_closest_marker("each_feed"):
            for feed in feeds if is_thorough() else feeds[1:]:
                work[kernels.index(own), _feed_suffix(feed, feeds), feed].append(item)
            continue
        for kernel, feed in zip(runs_on, _turns(item, feeds) if others else feeds, strict=False):
            name = f"@{kernel.name}" if kernel is not own else ""
            work[kernels.index(kernel), name + _feed_suffix(feed, feeds), feed].append(item)
    return [
        Work(kernels[which], work[which, suffix, feed], durations, suffix, feed) for which, suffix, feed in sorted(work)
    ]


def needs(item: pytest.Item) -> frozenset[str]:
    """Return those of the markers NEEDS that a test has."""
    return frozenset(name for name in NEEDS if item.get_closest_marker(name))


def _runs_on(item: pytest.Item, kernels: list[Kernel]) -> list[Kernel]:
    """The kernels of a test, its own first."""
    own, *others = (kernel for kernel in kernels if kernel.can(needs(item)))
    found = [own]
    if item.get_closest_marker("each_firewall"):
        found += [kernel for kernel in others if kernel.firewall != own.firewall][:1]
    if item.get_closest_marker("every_kernel"):
        found += [kernel for kernel in others if kernels[0].directory != kernel.directory != own.directory]
    return list(dict.fromkeys(found))


def _turns(item: pytest.Item, feeds: list[str]) -> Iterator[str]:
    """The feeds of a test on one kernel after the other."""
    marker = item.get_closest_marker("feed_in_turn")
    if marker is None:
        return itertools.repeat(feeds[0])
    return itertools.islice(itertools.cycle(feeds), marker.args[0] % len(feeds), None)


def _feed_suffix(feed: str, feeds: list[str]) -> str:
    return f"@{feed}" if feed != feeds[0] else ""
