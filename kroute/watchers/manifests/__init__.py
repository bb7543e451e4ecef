"""Follow a directory of manifests as if it were a cluster."""
