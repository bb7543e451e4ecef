"""`kroute director`: a load balancer outside the cluster that owns its external addresses and routes to its nodes."""
