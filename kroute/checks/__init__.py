"""What the node and the cluster must offer, and who else is at work there."""
