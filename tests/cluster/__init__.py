"""A cluster of the real Kubernetes in the lab's machines: docs/cluster.md."""
