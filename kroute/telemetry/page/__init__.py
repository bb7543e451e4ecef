"""The content of the status page."""
