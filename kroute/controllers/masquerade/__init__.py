"""The nat and filter rules, and the sets that they look up."""
