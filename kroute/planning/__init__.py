"""Compute plans from Kubernetes objects: pure functions and values, no I/O, no clock."""
