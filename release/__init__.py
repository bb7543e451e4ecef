"""Builds what a release consists of: `python -m release DIRECTORY`, or `make release`.

Everything is the same, byte by byte, whenever and wherever it is built from one commit and the same packages: times
are those of the commit (SOURCE_DATE_EPOCH), files are sorted, owners are root.
"""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
