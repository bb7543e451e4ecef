"""The types that every package shares: Kubernetes objects, facts about the node, plans, addresses. No I/O."""
