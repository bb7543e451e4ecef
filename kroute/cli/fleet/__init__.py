"""The agents of a whole cluster, asked by way of kubectl: find their pods, ask each, and compare what they answer."""
