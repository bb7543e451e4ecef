"""Which options of a list or watch the API server refuses (`ValidateListOptions`, and the storage's own checks)."""

from collections.abc import Iterator, Mapping

from tests.apiserver import status

TRUE = frozenset({"true", "1"})
EXACT, NOT_OLDER_THAN = "Exact", "NotOlderThan"
_NUMBERS = ("limit", "timeoutSeconds")


def check(query: Mapping[str, str], *, streaming_lists: bool) -> None:
    """Raises StatusError: 400 for what cannot be read, 422 for what does not go together."""
    for name in _NUMBERS:
        if (text := query.get(name)) and not text.removeprefix("-").isdecimal():
            raise status.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    watches = query.get("watch") in TRUE
    problems = list(_of_a_watch(query, streaming_lists) if watches else _of_a_list(query))
    if problems:
        raise status.invalid_options(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")
    if query.get("continue") and query.get("resourceVersion", "") not in {"", "0"}:
        raise status.bad_request("specifying resource version is not allowed when using continue")


def _of_a_list(query: Mapping[str, str]) -> Iterator[str]:
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    if match:
        if not version:
            yield _forbidden("resourceVersionMatch", "is forbidden unless resourceVersion is provided")
        if query.get("continue"):
            yield _forbidden("resourceVersionMatch", "is forbidden when continue is provided")
        if match not in {EXACT, NOT_OLDER_THAN}:
            yield f'resourceVersionMatch: Unsupported value: "{match}": supported values: "{EXACT}", "{NOT_OLDER_THAN}"'
        if match == EXACT and version == "0":
            yield _forbidden("resourceVersionMatch", '"exact" is forbidden for resourceVersion "0"')
    if "sendInitialEvents" in query:
        yield _forbidden("sendInitialEvents", "is forbidden for list")


def _of_a_watch(query: Mapping[str, str], streaming_lists: bool) -> Iterator[str]:
    match = query.get("resourceVersionMatch", "")
    initial = "sendInitialEvents" in query
    if match:
        if not initial:
            yield _forbidden("resourceVersionMatch", "is forbidden for watch unless sendInitialEvents is provided")
        if match != NOT_OLDER_THAN:
            yield f'resourceVersionMatch: Unsupported value: "{match}": supported values: "{NOT_OLDER_THAN}"'
        if query.get("continue"):
            yield _forbidden("resourceVersionMatch", "is forbidden when continue is provided")
    if initial and match != NOT_OLDER_THAN:
        yield (
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to "
            f"{NOT_OLDER_THAN}"
        )
    if initial and not streaming_lists:
        yield _forbidden("sendInitialEvents", "is forbidden for watch unless the WatchList feature gate is enabled")


def _forbidden(option: str, why: str) -> str:
    return f"{option}: Forbidden: {option} {why}"
