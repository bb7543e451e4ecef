"""How often the text of untrusted JSON is searched for its next bracket."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kroute.watchers import json_text


class Steps:
    """Stands in for the regular expression that finds brackets, and counts its uses."""

    def __init__(self) -> None:
        self.taken = 0
        self._run = json_text._RUN

    def match(self, text: bytes, position: int) -> Any:
        self.taken += 1
        return self._run.match(text, position)


@contextmanager
def counted() -> Iterator[Steps]:
    """Count during the block."""
    with pytest.MonkeyPatch.context() as patch:
        steps = Steps()
        patch.setattr(json_text, "_RUN", steps)
        yield steps
