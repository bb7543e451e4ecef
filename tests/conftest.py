"""Fixtures and settings of all tests."""

import gc
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests import examples

pytest_plugins = ("tests.lab.plugin", "tests.lab.fixtures")

# On a busy machine any example may take seconds.
settings.register_profile("kroute", deadline=None, max_examples=examples.ALL)
settings.register_profile("quick", deadline=None, max_examples=examples.QUICK)
settings.load_profile("kroute")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collection, and let none visit what is there by then: modules and tests.

    They last as long as the process. Visiting them again and again takes a third of the collection's time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
