"""Import the lab's fixtures (tests/lab/fixtures.py) for the scenarios."""

from tests.lab.world import FAMILIES, Family, World

__all__ = ["FAMILIES", "Family", "World"]
