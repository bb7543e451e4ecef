"""`python -m tests.lab.run [-i] COMMAND...`: run a command where the lab's kernel is, and exit with its exit code.

The command's output arrives live, without the machine's boot messages. `-i` connects it to the terminal.
"""

import os
import sys

from tests.lab.mode import lab_mode
from tests.lab.places import PROJECT, cache
from tests.lab.vm.machine import Machine, MachineError

PASSED_ON = ("TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PYTHONDONTWRITEBYTECODE", "KUBERNETES")


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a command in the lab, with the caller's `KROUTE_...` variables."""
    kept = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("KROUTE_")}
    if not sys.stdout.isatty():
        kept["TERM"] = "dumb"  # the command's terminal is the lab's console, not this one
    own = {"KROUTE_LAB": "host", "KROUTE_CACHE": str(cache()), "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1"}
    return {**kept, **own, **more}


def main(arguments: list[str]) -> int:
    """Run `arguments` in the lab and return its exit code."""
    interactive = arguments[:1] == ["-i"]
    command = arguments[1:] if interactive else arguments
    if lab_mode() == "host":
        os.chdir(PROJECT)
        os.environ.update(environment())
        os.execvp(command[0], command)
    if interactive and sys.stdin.isatty():
        size = os.get_terminal_size()
        os.environ.update(COLUMNS=str(size.columns), LINES=str(size.lines))
    with Machine("run") as machine:
        try:
            machine.start(command, environment=environment(), output=sys.stdout.buffer, terminal=interactive)
            return machine.wait()
        except MachineError as error:
            print(error, file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
