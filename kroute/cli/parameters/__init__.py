"""How commands read flags, variables, files and arguments, and the settings from them."""
