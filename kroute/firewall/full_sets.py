"""Says once of each set that it can hold no more."""

import structlog

log = structlog.get_logger(__name__)


class FullSets:
    """The sets of one firewall that have been reported as full."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report(self, name: str, elements: int) -> None:
        """Log that the set cannot hold more than so many elements, unless that has been logged before."""
        if name in self._reported:
            return
        self._reported.add(name)
        log.error(
            "set.full",
            set=name,
            elements=elements,
            next_step="find the Services with the most ports or source ranges: `kroute show services`",
        )
