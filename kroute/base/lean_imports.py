"""Keeps structlog and msgspec from loading packages that kroute does not use, where these are installed.

structlog looks for libraries that draw tracebacks, which plain text shows as well, and for two that have their own
kind of threads. rich alone costs 0.05 s and 4 MiB. msgspec takes from typing_extensions what Python has itself since
3.11. This module imports both while these packages look as if they were not installed, so it has to come before every
other that imports them: `kroute.base.logs` begins with it, and each command with `kroute.base.logs`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NOT_NEEDED = ("better_exceptions", "colorama", "greenlet", "rich", "twisted", "typing_extensions")


@contextmanager
def _without(*packages: str) -> Iterator[None]:
    """Make packages look as if they were not installed, unless they are already imported."""
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # an import of None raises ImportError
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


with _without(*_NOT_NEEDED):
    import msgspec  # noqa: F401
    import structlog  # noqa: F401
