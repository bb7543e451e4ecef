"""Label and field selectors of lists and watches."""

import re
from collections.abc import Callable
from typing import Any

from tests.apiserver.resources import Object, ResourceType
from tests.apiserver.status import bad_request
from tests.apiserver.validation import is_label_value, is_qualified_name

Selection = Callable[[Object], bool]

_SET = re.compile(r"(?P<name>\S+)\s+(?P<operator>in|notin)\s+\((?P<values>[^)]*)\)")
_EQUALITY = re.compile(r"(?P<name>[^=!,]+)(?P<operator>==|=|!=)(?P<value>[^=!,]*)")


def select_labels(text: str) -> Selection:
    conditions = [_label_condition(term.strip()) for term in re.split(r",(?![^(]*\))", text)] if text.strip() else []
    return lambda item: all(condition(item["metadata"].get("labels") or {}) for condition in conditions)


def _label_condition(term: str) -> Callable[[dict[str, str]], bool]:
    if match := _SET.fullmatch(term):
        name, values = match["name"], {value.strip() for value in match["values"].split(",")}
        _check_term(term, name, *values)
        if match["operator"] == "in":
            return lambda labels: labels.get(name) in values
        return lambda labels: labels.get(name) not in values
    if match := _EQUALITY.fullmatch(term):
        name, value = match["name"].strip(), match["value"].strip()
        _check_term(term, name, value)
        if match["operator"] == "!=":
            return lambda labels: labels.get(name) != value
        return lambda labels: labels.get(name) == value
    _check_term(term, term.removeprefix("!"))
    if term.startswith("!"):
        return lambda labels: term[1:] not in labels
    return lambda labels: term in labels


def _check_term(term: str, name: str, *values: str) -> None:
    if not is_qualified_name(name) or not all(map(is_label_value, values)):
        raise bad_request(f"unable to parse requirement: {term}: this can be neither a label nor its value")


def select_fields(text: str, type_: ResourceType, extra_fields: bool) -> Selection:
    allowed = {"metadata.name", "metadata.namespace"} | (type_.fields if extra_fields else set())
    conditions = []
    for term in filter(None, text.split(",")):
        match = _EQUALITY.fullmatch(term)
        if match is None:
            raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
        if match["name"] not in allowed:
            raise bad_request(
                f'Unable to find "{type_.api_version}, Resource={type_.plural}" that match label selector "", '
                f'field selector "{text}": field label not supported: {match["name"]}'
            )
        conditions.append((match["name"], match["operator"] != "!=", match["value"]))
    return lambda item: all((_field(item, name) == value) is wanted for name, wanted, value in conditions)


def _field(item: Object, name: str) -> str:
    value: Any = item
    for part in name.split("."):
        value = value.get(part, {}) if isinstance(value, dict) else {}
    return value if isinstance(value, str) else ""
