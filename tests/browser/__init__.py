"""Tests of what a person sees in a browser."""
