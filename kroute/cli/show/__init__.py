"""`kroute show`: tables of what is served, one Service in full, and live rates."""
