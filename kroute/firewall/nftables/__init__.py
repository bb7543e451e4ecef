"""The firewall backend on nf_tables: one table of each family, which is kroute's alone."""
