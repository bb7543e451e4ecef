"""The unit tests, run on Debian for arm64 in emulation."""
