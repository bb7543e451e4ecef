"""The settings in the log: one line at the start, with those that are not the defaults."""

from collections.abc import Mapping

import structlog

log = structlog.get_logger(__name__)


def log_settings(differing: Mapping[str, str]) -> None:
    """Log these flags with their values. All values are on the page /flagz."""
    log.info("settings.in_force", **{name.replace("-", "_"): value for name, value in differing.items()})
