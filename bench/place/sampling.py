"""Sample where kroute spends its processor time: `python -m bench.place.sampling FILE ARGV...` runs `kroute ARGV...`.

A profiler that reads the clock at every call is useless in a lab machine, whose kernel needs many microseconds to tell
the time. This one samples the stack a hundred times per second of processor time, and writes two tables: by the line on
top, and by all functions on the stack. FILE.json has the samples by the files on the stack: [[samples, [file, …]], …].
"""

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

INTERVAL = 0.01
ROWS = 60


class Samples:
    """Counts of the lines on top of the stack, and of the functions and files anywhere on it."""

    def __init__(self) -> None:
        self.on_top: Counter[tuple[CodeType, int]] = Counter()
        self.anywhere: Counter[CodeType] = Counter()
        self.files: Counter[frozenset[str]] = Counter()

    def start(self) -> None:
        """Begin to sample. Each sample schedules the next, so that none follows a slow one at once."""
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL)

    def stop(self) -> None:
        """Stop sampling."""
        signal.signal(signal.SIGPROF, signal.SIG_IGN)

    def _take(self, _number: int, frame: FrameType | None) -> None:
        if frame is not None:
            self.on_top[frame.f_code, frame.f_lineno] += 1
        seen: set[CodeType] = set()
        while frame is not None:
            seen.add(frame.f_code)
            frame = frame.f_back
        for code in seen:
            self.anywhere[code] += 1
        self.files[frozenset(code.co_filename for code in seen)] += 1
        signal.setitimer(signal.ITIMER_PROF, INTERVAL)

    def __str__(self) -> str:
        lines = [f"on top ({self.on_top.total()} samples of {INTERVAL * 1000:.0f} ms)"]
        for (code, line), count in self.on_top.most_common(ROWS):
            lines.append(f"{count * INTERVAL:8.2f} s  {_name(code)}:{line}")
        lines.append("on the stack")
        for code, count in self.anywhere.most_common(ROWS):
            lines.append(f"{count * INTERVAL:8.2f} s  {_name(code)}")
        return "\n".join(lines) + "\n"


def _name(code: CodeType) -> str:
    return f"{'/'.join(Path(code.co_filename).parts[-2:])} {code.co_qualname}"


def main(output: Path, arguments: list[str]) -> None:
    """Run kroute, and write the tables when it has ended."""
    samples = Samples()
    samples.start()
    from kroute.cli import main as cli  # noqa: PLC0415  its imports are to be sampled, too

    try:
        cli.main(arguments)
    finally:
        samples.stop()
        output.write_text(str(samples))
        by_files = [[count, sorted(files)] for files, count in samples.files.items()]
        output.with_suffix(".json").write_text(json.dumps(by_files))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
