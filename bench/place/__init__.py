"""The place of a measurement: the node under test, the wire to it, and what looks at it from outside."""
