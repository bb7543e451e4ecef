"""Links, addresses, routes and policy rules, and the events of their changes."""
