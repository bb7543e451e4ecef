"""The schema of the chart's values: `settings` are the options of `kroute run`, as the command line defines them."""

import json
from typing import Any

import click

from kroute.cli.main import load
from kroute.cli.migrate import PROXIES

Schema = dict[str, Any]

OF_THE_POD = {
    *("config", "kubeconfig", "master", "manifests", "node-name", "node-ip"),
    *("state-dir", "proc-sys", "bird-directory", "peer-passwords"),
}
"""What the pod's own manifest settles, or what has no meaning in a pod."""

OF_MIGRATION = {"other-proxies", "take-over-after"}
"""What is in the part `migration` of the values."""

_SERVER = r"^([A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)$"
"""HOST, HOST:PORT, [IPv6]:PORT or IPv6."""
_STRING: Schema = {"type": "string"}
_MAP: Schema = {"type": "object"}
_TEXTS: Schema = {"type": "object", "additionalProperties": _STRING}
_BOOLEAN: Schema = {"type": "boolean"}
_OBJECTS: Schema = {"type": "array", "items": _MAP}
_IMAGE: Schema = {
    "repository": _STRING,
    "tag": _STRING,
    "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
}
_NAME: Schema = {"type": "string", "pattern": "^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$", "maxLength": 253}

_IPV4 = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])){3}"
_IPV6 = r"[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f.]*"
_CIDR = rf"({_IPV4}(/(3[0-2]|[12]?[0-9]))?|{_IPV6}(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?)"
_PORT = "[0-9]{1,5}"
_DURATION = r"(([0-9]+h)?([0-9]+m)?[0-9]+(\.[0-9]+)?s?|([0-9]+h)?[0-9]+m|[0-9]+h)"

ELEMENTS = {
    "ASN[,ASN]": "[0-9]{1,10}",
    "CIDR[,CIDR]": _CIDR,
    "CLASS[,CLASS]": r"([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    "CIDR[,CIDR]|primary": rf"({_CIDR}|[Pp][Rr][Ii][Mm][Aa][Rr][Yy])",
    "DURATION": _DURATION,
    "FLAG[,FLAG]|none": "[a-z0-9-]+",
    "ID": _IPV4,
    "IP[,IP]": rf"({_IPV4}|{_IPV6})",
    "IP:PORT|off": rf"([Oo][Ff][Ff]|({_IPV4}|\[{_IPV6}\])?:{_PORT})",
    "MARK": "(0x[0-9A-Fa-f]+|[0-9]+)",
    "NAME": r"[^\s/:]{1,63}",
    "PERCENT": r"[0-9]+(\.[0-9]+)? ?%",
    "DIRECTORY": "/[A-Za-z0-9._/-]*",
    "PORT[,PORT]": _PORT,
    "PORT[-PORT][,...]": rf"{_PORT}(-{_PORT})?",
    "SRC:DST[,...]": rf"({_IPV4}(/[0-9]+)?:{_IPV4}(/[0-9]+)?|{_IPV6}/[0-9]+:{_IPV6}/[0-9]+)",
}
"""What one value of a setting looks like, by the word that its help has for it. `settings.text` says the rest."""


def schema() -> Schema:
    """The content of `deploy/helm/kroute/values.schema.json`."""
    options = {_name(it): it for it in load("run").params}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart kroute",
        **_closed(
            {
                "mode": {"enum": ["serve", "uninstall", "hand-over"]},
                "enabled": _BOOLEAN,
                "image": _closed(
                    {
                        **_IMAGE,
                        "repository": {"type": "string", "minLength": 1},
                        "pullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]},
                        "pullSecrets": {"type": "array", "items": _closed({"name": _STRING})},
                    }
                ),
                "apiServer": _closed(
                    {
                        "host": {"type": "string", "pattern": r"^([0-9A-Za-z_.-]+|[0-9A-Fa-f:.]+)?$"},
                        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
                        "hosts": {
                            "type": "array",
                            "items": {"type": "string", "pattern": _SERVER},
                            "uniqueItems": True,
                        },
                    }
                ),
                "settings": _closed(
                    {name: of_option(it) for name, it in options.items() if name not in OF_THE_POD | OF_MIGRATION}
                ),
                "config": _closed({"configMap": _NAME, "key": {"type": "string", "pattern": "^[-._a-zA-Z0-9]+$"}}),
                "migration": _closed(
                    {
                        "otherProxies": of_option(options["other-proxies"]),
                        "takeOverAfter": of_option(options["take-over-after"]),
                        "byLabel": _BOOLEAN,
                        "handOverTo": {"enum": ["", *PROXIES]},
                    }
                ),
                "iptables": _BOOLEAN,
                "loadModules": _BOOLEAN,
                "admission": _BOOLEAN,
                "directors": {"type": "array", "items": _director()},
                "serviceAccount": _closed({"create": _BOOLEAN, "name": _NAME, "annotations": _TEXTS}),
                "podMonitor": _closed(
                    {
                        "enabled": _BOOLEAN,
                        "interval": {"type": "string", "pattern": "^([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$"},
                        "labels": _TEXTS,
                        "relabelings": _OBJECTS,
                    }
                ),
                "prometheusRule": _closed(
                    {
                        "enabled": _BOOLEAN,
                        "labels": _TEXTS,
                        "runbooks": {"type": "string", "pattern": r"^(https?://[^\s#]+)?$"},
                    }
                ),
                "dashboard": _closed({"enabled": _BOOLEAN, "labels": _TEXTS, "annotations": _TEXTS}),
                "bird": _closed(
                    {
                        "enabled": _BOOLEAN,
                        "image": _closed(_IMAGE),
                        "capabilities": {"type": "array", "items": {"type": "string", "pattern": "^[A-Z_]+$"}},
                        **_daemonset(),
                    }
                ),
                **_daemonset(),
                "priorityClassName": _NAME,
                "nodeSelector": _TEXTS,
                "tolerations": _OBJECTS,
                "affinity": _MAP,
                "podAnnotations": _TEXTS,
                "podLabels": {**_TEXTS, "propertyNames": {"not": {"const": "app.kubernetes.io/name"}}},
                "extraInitContainers": _OBJECTS,
                "extraEnv": {"type": "array", "items": {**_MAP, "required": ["name"]}},
                "extraVolumes": {"type": "array", "items": {**_MAP, "required": ["name"]}},
                "extraVolumeMounts": {"type": "array", "items": {**_MAP, "required": ["name", "mountPath"]}},
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
    element = ELEMENTS[kind.name]
    one: Schema = {"type": ["string", "integer"], "pattern": f"^{element}$"}
    if option.multiple:
        return {"type": ["string", "integer", "array"], "pattern": f"^({element}([, ]+|$))*$", "items": one}
    if _name(option).endswith("-bind-address"):
        return {"type": ["string", "boolean"], "pattern": f"^{element}$", "not": {"const": True}}
    return one


def _name(option: click.Parameter) -> str:
    return option.opts[0].removeprefix("--")


def _daemonset() -> Schema:
    # Two pods of one node would want the same ports, so maxSurge is not for them.
    rolling = _closed({"maxUnavailable": {"type": ["integer", "string"], "pattern": "^[0-9]+%$"}})
    return {
        "resources": _closed({"requests": _MAP, "limits": _MAP, "claims": {"type": "array"}}),
        "updateStrategy": _closed({"type": {"enum": ["RollingUpdate", "OnDelete"]}, "rollingUpdate": rolling}),
    }


def _director() -> Schema:
    name = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "not": {"const": "kroute"}}
    sync_id = {"type": "integer", "minimum": 1, "maximum": 255}
    return {**_closed({"name": name, "syncId": sync_id}), "required": ["name"]}


def _closed(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}
