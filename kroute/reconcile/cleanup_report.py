"""The report of a cleanup: what was undone, and what could not be."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kroute.kernel.errors import Failure, KernelError
from kroute.reconcile.ledger import LedgerError


class CleanupReport:
    """Collects one line for each object. A failure is noted, and the cleanup goes on with the rest."""

    def __init__(self) -> None:
        self.undone: list[str] = []
        self.failed: list[str] = []

    def add(self, *undone: str, failed: Iterable[str] = ()) -> None:
        """Note what was undone, and what could not be."""
        self.undone += undone
        self.failed += failed

    def batch(self, changes: Sequence[object], failures: Sequence[Failure[Any]], absent: Collection[int] = ()) -> None:
        """Note a batch of written changes. Those refused with an errno in `absent` had nothing to undo."""
        refused = {failure.change for failure in failures}
        self.undone += [str(change) for change in changes if change not in refused]
        self.failed += [str(failure) for failure in failures if failure.errno not in absent]

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Note the failure of this step, if it fails, and go on after it."""
        try:
            yield
        except (KernelError, LedgerError) as error:
            self.failed.append(f"{what}: {error}")
