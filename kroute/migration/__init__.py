"""Migrate a node from another service proxy to kroute, and back."""
