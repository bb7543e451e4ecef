"""Fixtures and settings of all tests."""

from hypothesis import settings

pytest_plugins = ("tests.lab.plugin", "tests.lab.fixtures")

settings.register_profile("kroute", deadline=None)  # on a busy machine any example may take seconds
settings.load_profile("kroute")
