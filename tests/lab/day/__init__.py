"""A day of trouble on the lab's three nodes: `tests/scenarios/test_day_in_an_hour.py`."""
