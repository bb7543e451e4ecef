"""How many examples hypothesis shows to a property: all in `make test`, a tenth of them in `make unit`.

`make unit` chooses the profile `quick` (tests/conftest.py). A property that names a number of its own takes it from
here, so that its number changes with the profile.
"""

from typing import Any

from hypothesis import settings

ALL = 100
"""Examples of a property that names no number; hypothesis's own default."""
QUICK = 10
"""The same in `make unit`."""


def is_quick() -> bool:
    """Whether the profile shows fewer examples than all."""
    return settings.default.max_examples < ALL


def examples(count: int, **other: Any) -> settings:
    """Settings with that many examples, or the chosen profile's share of it; `other` are more settings."""
    share = settings.default.max_examples / ALL
    return settings(max_examples=max(1, round(count * share)), **other)
