"""The end-to-end tests of Kubernetes that concern a service proxy, with packets between namespaces.

`rows.py` lists every row, ours or not; a test says with `@row("C3")` which one it shows, and carries its name.
`python -m tests.conformance` (`make conformance`) runs all of them and writes docs/conformance.md.
"""
