"""What the command line says of itself: help, the version, completion in shells, and man pages."""
