"""Links, addresses, routes and policy rules, and the events that tell of their changes."""
