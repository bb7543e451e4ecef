"""A result as Markdown, and its places: the headline in docs/performance.md, all figures in docs/design/figures.md."""

import os
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import headline
from bench.report.charts import CHARTS, charts
from bench.report.rows import ROWS
from bench.report.spread import Run, brief, by_size, how_many, spread_over
from bench.report.targets import straight_line, verdicts
from tests.lab.places import PROJECT

Result = Mapping[str, Any]

DOCS = PROJECT / "docs"
SUMMARY, DETAILS = "performance.md", "design/figures.md"
"""The pages with what the benches write, below DOCS."""


def marks(name: str) -> tuple[str, str]:
    """The lines of the page between which the text of this name is."""
    return f"<!-- written by make bench, {name}: begin -->\n", f"<!-- written by make bench, {name}: end -->\n"


HEADLINE, FIGURES = marks("headline"), marks("figures")


def measured(result: Result, of: str = "") -> str:
    """When and where the result was measured; `of` says with what."""
    return (
        f"Measured {result['when']} at `{result['commit']}`{of}, Python {result['python']}, on"
        f" {result['lab']}, {result['cores']} of the host's cores; the host's load was {result['load_before']:.1f}"
        f" before and {result['load_after']:.1f} after."
    )


def circumstances(result: Result) -> str:
    """When and where the result was measured, and of what."""
    backends = " and ".join(dict.fromkeys(run["firewall"] for run in result["runs"]))
    return f"{measured(result, f' with {backends}')} Each figure is {how_many(result['runs'])}."


def headline_text(result: Result) -> str:
    """The goals and what was measured, by size."""
    return "\n".join([circumstances(result), "", *headline.table(result["runs"])]) + "\n"


def figures_text(result: Result) -> str:
    """The other targets with their verdicts, then all figures by size."""
    runs: Sequence[Run] = result["runs"]
    sizes = by_size(runs)
    size = f"{max(sizes):,} Services x {runs[0]['endpoints']}"
    lines = [f"{circumstances(result)} {_lengths(result)}", ""]
    lines += [f"| target at {size} | limit | measured | |", "|---|---|---|---|"]
    for verdict in verdicts(runs):
        target, spread = verdict
        met = {None: "", True: "met", False: "**missed**"}[verdict.is_met]
        measured = "not measured" if spread is None else spread.text(f" {target.unit}")
        lines.append(f"| {target.figure} | {brief(target.limit, f' {target.unit}')} | {measured} | {met} |")
    lines += _growth(sizes)
    lines += ["", "| | " + " | ".join(f"{services:,}" for services in sizes) + " |", "|---|" + "---:|" * len(sizes)]
    for row in ROWS:
        spreads = [spread_over(each, row.value) for each in sizes.values()]
        if any(spreads):
            cells = ["-" if spread is None else spread.text(f" {row.unit}") for spread in spreads]
            lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _lengths(result: Result) -> str:
    """How long the phases of each run were, of those that it has."""
    lengths = {
        "update": f"{result['changes']} single changes",
        "storm": f"a storm of {result['storm']:.0f} s",
        "hurricane": f"a hurricane of {result.get('hurricane', 0):.0f} s",
        "idle": f"{result['idle']:.0f} s idle",
    }
    found = [text for phase, text in lengths.items() if all(phase in run for run in result["runs"])]
    return f"In each run: {', '.join(found)}." if found else ""


def _growth(sizes: Mapping[int, Sequence[Run]]) -> list[str]:
    """The straight lines through the cold starts' time and memory, if there are enough points."""
    if len(sizes) < 3:
        return []
    runs = [run for each in sizes.values() for run in each]
    seconds = straight_line([(run["services"], run["cold"]["list_to_ready"]) for run in runs])
    kib = straight_line([(run["services"], run["cold"]["rss_settled"] / 1024) for run in runs])
    return [
        "",
        (
            f"Straight lines through the cold starts: {seconds.start:.2f} s and {seconds.slope * 1000:.2f} ms a Service"
            f" (R² {seconds.r_squared:.4f}); {kib.start / 1024:.1f} MiB settled and {kib.slope:.2f} KiB a Service"
            f" (R² {kib.r_squared:.4f})."
        ),
    ]


def write(result: Result, directory: Path) -> None:
    """Write the charts into the directory of the figures, and remove older ones that this result does not have."""
    drawn = charts(result)
    for name in CHARTS:
        if name in drawn:
            (directory / name).write_text(drawn[name])
        else:
            (directory / name).unlink(missing_ok=True)


def publish(result: Result, directory: Path, docs: Path = DOCS) -> None:
    """Put the tables, and the charts that are in the directory, into the pages.

    Raises ValueError if these have no place for them.
    """
    put_between(docs / SUMMARY, HEADLINE, headline_text(result))
    images = "\n".join(image(directory / name, docs / DETAILS) for name in charts(result))
    put_between(docs / DETAILS, FIGURES, f"{figures_text(result)}\n{images}\n")


def image(file: Path, page: Path) -> str:
    """A chart as it is on a page."""
    return f"![{file.stem}]({os.path.relpath(file, page.parent)})"


def add_options(parser: ArgumentParser, page: str, file: Path) -> None:
    """The options of a bench that has a file of results and a part of the page of its own."""
    parser.add_argument("--publish", action="store_true", help=f"put the tables and charts into docs/{page}")
    parser.add_argument("--again", action="store_true", help="measure nothing, write the last result again")
    parser.add_argument("--output", type=Path, default=file, help="the file of the results")


def put_between(page: Path, between: tuple[str, str], text: str) -> None:
    """Put a text into the page, between two marks. Raises ValueError if the marks are missing."""
    begin, end = between
    before, found_begin, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"{page} has no place for the bench's results: it needs the lines {begin!r} and {end!r}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
