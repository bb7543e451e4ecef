"""Network policies in the node's firewall. So far nf_tables alone."""
