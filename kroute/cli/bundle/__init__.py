"""`kroute bundle`: everything that support needs, in one file, without secrets."""
