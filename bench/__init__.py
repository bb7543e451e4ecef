"""The bench: how fast kroute is, in the lab's kernel, beside the batch tools in C on the same content.

`python -m bench` or `make bench`; docs/performance.md says what is measured and how.
"""
