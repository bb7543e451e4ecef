"""The schema of the chart's values: `settings` are the options of `kroute run`, as the command line defines them."""

import json
from typing import Any

import click

from kroute.cli.main import load

Schema = dict[str, Any]

OF_THE_POD = {"config", "kubeconfig", "master", "manifests", "node-name", "node-ip", "state-dir", "proc-sys"}
"""What the pod's own manifest settles, or what has no meaning in a pod."""

_SERVER = r"^([A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)$"
"""HOST, HOST:PORT, [IPv6]:PORT or IPv6."""
_STRING: Schema = {"type": "string"}
_MAP: Schema = {"type": "object"}
_BOOLEAN: Schema = {"type": "boolean"}
_ITEM: Schema = {"type": ["string", "integer"]}


def schema() -> Schema:
    """The content of `deploy/helm/kroute/values.schema.json`."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart kroute",
        **_closed(
            {
                "mode": {"enum": ["serve", "uninstall"]},
                "image": _closed(
                    {
                        "repository": {"type": "string", "minLength": 1},
                        "tag": _STRING,
                        "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
                        "pullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]},
                        "pullSecrets": {"type": "array", "items": _closed({"name": _STRING})},
                    }
                ),
                "apiServer": _closed(
                    {
                        "host": _STRING,
                        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
                        "hosts": {
                            "type": "array",
                            "items": {"type": "string", "pattern": _SERVER},
                            "uniqueItems": True,
                        },
                    }
                ),
                "settings": _closed(
                    {name: of_option(it) for it in load("run").params if (name := _name(it)) not in OF_THE_POD}
                ),
                "iptables": _BOOLEAN,
                "loadModules": _BOOLEAN,
                "directors": {"type": "array", "items": _director()},
                "podMonitor": _closed({"enabled": _BOOLEAN, "interval": _STRING, "labels": _MAP}),
                "prometheusRule": _closed({"enabled": _BOOLEAN, "labels": _MAP, "runbooks": _STRING}),
                "resources": _MAP,
                "maxUnavailable": {"type": ["integer", "string"], "pattern": "^[0-9]+%$"},
                "nodeSelector": _MAP,
                "tolerations": {"type": "array"},
                "affinity": _MAP,
                "podAnnotations": {"type": "object", "additionalProperties": _STRING},
                "global": _MAP,
            }
        ),
    }


def text() -> str:
    return json.dumps(schema(), indent=2) + "\n"


def of_option(option: click.Parameter) -> Schema:
    """What a setting's value may be. YAML takes an unquoted `on` or `off` for a boolean."""
    kind = option.type
    if isinstance(kind, click.Choice):
        words = list(kind.choices)
        return {"enum": [*words, True, False]} if {"on", "off"} <= set(words) else {"enum": words}
    if isinstance(kind, click.IntRange):
        limits = {"minimum": kind.min, "maximum": kind.max}
        return {"type": "integer", **{name: limit for name, limit in limits.items() if limit is not None}}
    if kind.name == "boolean":
        return _BOOLEAN
    if option.multiple:
        return {"type": ["string", "integer", "array"], "items": _ITEM}
    return {"type": ["string", "boolean"]} if _name(option).endswith("-bind-address") else _ITEM


def _name(option: click.Parameter) -> str:
    return option.opts[0].removeprefix("--")


def _director() -> Schema:
    name = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "not": {"const": "kroute"}}
    sync_id = {"type": "integer", "minimum": 1, "maximum": 255}
    return {**_closed({"name": name, "syncId": sync_id}), "required": ["name"]}


def _closed(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}
