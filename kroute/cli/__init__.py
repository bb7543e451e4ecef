"""The command line: options, output, and a file or folder for each command."""
