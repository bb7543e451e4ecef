"""Follow a cluster by its API: list, watch, decode; credentials and errors of the API."""
