"""Weigh real servers: read what objects say, remember it, and apply the one rule (docs/weights.md)."""
