"""How commands write: formats, tables, the width of the terminal, and exit codes."""
