"""kroute: a Kubernetes service proxy for Linux nodes that programs IPVS."""

__version__ = "0.2.0"
