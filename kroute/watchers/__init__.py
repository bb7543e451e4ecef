"""Follow changes of the cluster and of the node, and turn them into small typed objects."""
