"""Follow a cluster by its API: list, watch and decode, with the API's credentials and errors."""
