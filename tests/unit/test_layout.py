"""The code's folders are packages, the tests are in folders of the same names, and no file grows without end."""

from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "kroute"
FILES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({file.parent for file in FILES})

LINES_OF_A_FILE = 500
"""For a file with one reason to change. No file is split to keep the count."""
BESIDE_THE_CODE = {Path("fuzz")}
"""Folders of unit tests about the code as a whole."""


def test_a_folder_is_a_package() -> None:
    assert [str(folder) for folder in FOLDERS if not (folder / "__init__.py").is_file()] == []


def test_a_file_is_not_endless() -> None:
    lengths = {str(file.relative_to(PACKAGE)): len(file.read_text().splitlines()) for file in FILES}
    assert {name: length for name, length in lengths.items() if length > LINES_OF_A_FILE} == {}


def test_unit_tests_are_in_the_folders_of_the_code() -> None:
    tests = Path(__file__).parent
    folders = {file.parent.relative_to(tests) for file in tests.rglob("test_*.py")}
    assert folders - BESIDE_THE_CODE <= {folder.relative_to(PACKAGE) for folder in FOLDERS}
