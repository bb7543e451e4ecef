"""Fixtures and settings of all tests."""

from hypothesis import settings

from tests import examples

pytest_plugins = ("tests.lab.plugin", "tests.lab.fixtures")

# On a busy machine any example may take seconds.
settings.register_profile("kroute", deadline=None, max_examples=examples.ALL)
settings.register_profile("quick", deadline=None, max_examples=examples.QUICK)
settings.load_profile("kroute")
