"""What is masqueraded and what is refused: the plans' entries and the node's facts, handed to the firewall."""
