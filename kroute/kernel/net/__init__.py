"""Links, addresses, routes and policy rules, and the events when they change."""
