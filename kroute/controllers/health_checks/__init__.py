"""The HTTP servers that answer at each `healthCheckNodePort`."""
