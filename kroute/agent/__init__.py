"""An agent: start it, wire its parts together, and run them."""
