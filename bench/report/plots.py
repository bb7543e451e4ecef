"""Line charts as SVG, without any library: axes, ticks, lines with their points, and a legend."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

Point = tuple[float, float]

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 56, 48
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df")


def line_chart(
    title: str, x_name: str, y_name: str, series: Mapping[str, Sequence[Point]], *, logarithmic: bool = False
) -> str:
    """A chart of named lines. If `logarithmic`, both axes are, and only points above zero are shown."""
    shown = {name: [point for point in points if not logarithmic or min(point) > 0] for name, points in series.items()}
    points = [point for line in shown.values() for point in line]
    if not points:
        raise ValueError(f"{title}: there is nothing to show")
    x_axis = _axis([x for x, _ in points], logarithmic=logarithmic)
    y_axis = _axis([y for _, y in points], logarithmic=logarithmic)
    place_x = _scale(x_axis, LEFT, WIDTH - RIGHT, logarithmic=logarithmic)
    place_y = _scale(y_axis, HEIGHT - BOTTOM, TOP, logarithmic=logarithmic)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 18, title, size=14),
        *_grid(x_axis, place_x, y_axis, place_y),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name, anchor="middle"),
        _text(LEFT, TOP - 6, y_name),
    ]
    for colour, (name, line) in zip(COLOURS, shown.items(), strict=False):
        parts += _line([(place_x(x), place_y(y)) for x, y in line], colour)
        parts.append(_legend(list(shown).index(name), name, colour))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _grid(
    x_ticks: Iterable[float],
    place_x: Callable[[float], float],
    y_ticks: Iterable[float],
    place_y: Callable[[float], float],
) -> list[str]:
    parts = []
    for tick in x_ticks:
        x = place_x(tick)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#d8dee4"/>')
        parts.append(_text(x, HEIGHT - BOTTOM + 16, _number(tick), anchor="middle"))
    for tick in y_ticks:
        y = place_y(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#d8dee4"/>')
        parts.append(_text(LEFT - 6, y + 4, _number(tick), anchor="end"))
    return parts


def _line(points: Sequence[Point], colour: str) -> list[str]:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dots = (
        [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points] if len(points) < 20 else []
    )
    return [f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>', *dots]


def _legend(index: int, name: str, colour: str) -> str:
    x = LEFT + index * (WIDTH - LEFT - RIGHT) / len(COLOURS)
    return f'<rect x="{x:.1f}" y="26" width="10" height="10" fill="{colour}"/>' + _text(x + 14, 35, name)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _axis(values: Sequence[float], *, logarithmic: bool) -> list[float]:
    """Ticks from below the least value, or from 0, to above the greatest value."""
    if logarithmic:
        first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return [10.0**power for power in range(first, max(last, first + 1) + 1)]
    top = max(*values, 0.0) or 1.0
    step = 10.0 ** math.floor(math.log10(top))
    step = next(step * part for part in (0.2, 0.5, 1.0, 2.0) if top / (step * part) <= 6)
    return [step * index for index in range(math.ceil(top / step) + 1)]


def _scale(axis: Sequence[float], begin: float, end: float, *, logarithmic: bool) -> Callable[[float], float]:
    transform: Callable[[float], float] = math.log10 if logarithmic else float
    low, high = transform(axis[0]), transform(axis[-1])
    return lambda value: begin + (transform(value) - low) / (high - low) * (end - begin)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 and value == round(value) else f"{value:g}"
