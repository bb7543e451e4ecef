"""The controller that has pods answer clients of external addresses themselves."""
