"""nf_tables: tables, sets, chains, rules and elements, over netlink alone."""
