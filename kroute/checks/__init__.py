"""The prerequisites of a node and a cluster, and traces of other service proxies."""
