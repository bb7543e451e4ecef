"""The data path: what a packet to a Service costs the node, by kroute and by kube-proxy."""
