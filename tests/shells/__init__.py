"""Tests with the shells and the manual reader of a Debian machine: `scripts/setup test` installs them."""
