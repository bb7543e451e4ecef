"""What all tests share."""

pytest_plugins = ("tests.lab.plugin", "tests.lab.fixtures")
