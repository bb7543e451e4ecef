"""The listeners at every `healthCheckNodePort`."""
