"""The nouns that everybody shares: Kubernetes objects, facts about the node, plans, addresses. No I/O."""
