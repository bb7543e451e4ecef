"""Decide what should be: pure functions and values, no I/O, no clock."""
