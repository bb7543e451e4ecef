"""The code keeps small folders and small files, so that a reader finds things."""

from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kroute"
FILES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({file.parent for file in FILES})

MODULES_OF_A_FOLDER = 15
LINES_OF_A_FILE = 300
BESIDE_THE_CODE = {Path("fuzz")}
"""Folders of unit tests about the code as a whole."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(PACKAGE.parent)))
def test_a_folder_has_few_modules_of_its_own(folder: Path) -> None:
    modules = [file.name for file in FILES if file.parent == folder and file.name != "__init__.py"]
    assert len(modules) <= MODULES_OF_A_FOLDER, "put what belongs together into a folder below"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(PACKAGE.parent)))
def test_a_folder_is_a_package(folder: Path) -> None:
    assert (folder / "__init__.py").is_file()


def test_a_file_is_short() -> None:
    lengths = {str(file.relative_to(PACKAGE)): len(file.read_text().splitlines()) for file in FILES}
    assert {name: length for name, length in lengths.items() if length > LINES_OF_A_FILE} == {}


def test_unit_tests_are_in_the_folders_of_the_code() -> None:
    tests = Path(__file__).parent
    folders = {file.parent.relative_to(tests) for file in tests.rglob("test_*.py")}
    assert folders - BESIDE_THE_CODE <= {folder.relative_to(PACKAGE) for folder in FOLDERS}
