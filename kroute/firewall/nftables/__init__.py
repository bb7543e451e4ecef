"""The firewall backend on nf_tables: one table of each family, which is nobody else's."""
