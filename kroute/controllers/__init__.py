"""Reconcile: compare the desired state with the applied one, write the delta, repair drift, clean up."""
