"""The scenarios' names for what the lab shares; its fixtures are in tests/lab/fixtures.py."""

from tests.lab.world import FAMILIES, Family, World

__all__ = ["FAMILIES", "Family", "World"]
