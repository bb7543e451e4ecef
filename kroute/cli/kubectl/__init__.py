"""`kubectl kroute`: the commands that ask the agents of a whole cluster, by way of kubectl."""
