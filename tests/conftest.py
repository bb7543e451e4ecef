"""Fixtures and settings of all tests."""

pytest_plugins = ("tests.lab.plugin", "tests.lab.fixtures")
