"""Figures as text."""

MIB = 1 << 20


def brief(value: float, unit: str) -> str:
    """The value with three significant digits, and its unit."""
    number = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return (number + unit).rstrip()
