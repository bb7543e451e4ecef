"""Tests with Prometheus itself: `scripts/setup test` installs Debian's package."""
