"""What an operator sees and asks for: commands, Events, the agent socket."""
