"""One test for a rule that holds for each of many pages, modules or rows: it names every one that breaks the rule."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def assert_each(cases: Iterable[T], check: Callable[[T], object], name: Callable[[T], str] = str) -> None:
    """Fail with what is wrong with each case for which `check` raises an error. There must be cases."""
    wrong, count = {}, 0
    for count, case in enumerate(cases, 1):  # noqa: B007
        try:
            check(case)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is said, and the next case is looked at
            wrong[name(case)] = str(error) or repr(error)
    assert count, "nothing was checked"
    assert not wrong, "\n".join(f"{case}: {reason}" for case, reason in wrong.items())
