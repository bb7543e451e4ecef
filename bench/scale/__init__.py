"""A large cluster of a real API server under churn: kroute, kube-proxy and kube-router, one after the other."""
