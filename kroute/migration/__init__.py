"""The way from another service proxy to kroute, and back."""
