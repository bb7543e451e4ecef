"""The end-to-end tests of Kubernetes that concern a service proxy, with packets between namespaces.

`rows.py` lists every row, whether it concerns kroute or not. A test names its rows with `@row("C3")`, and its own name
begins with the row's. `python -m tests.conformance` (`make conformance`) runs all and writes docs/conformance.md.
"""
