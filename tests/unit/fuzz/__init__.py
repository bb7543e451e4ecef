"""Hostile bytes and objects, made by hypothesis. `make fuzz` runs many more examples than `make test`."""
