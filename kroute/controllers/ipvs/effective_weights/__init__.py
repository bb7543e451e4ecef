"""The weights that real servers have now, which may be less than the planned ones."""
