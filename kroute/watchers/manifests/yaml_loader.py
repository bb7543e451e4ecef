"""YAML as Kubernetes reads it: a time stamp is a string. Imported only when there is YAML to read."""

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from yaml import SafeLoader as FastestSafeLoader
else:
    FastestSafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ManifestLoader(FastestSafeLoader):
    """The safe loader, by libyaml where there is one, without dates."""


def _as_written(loader: ManifestLoader, node: Any) -> str:
    return str(loader.construct_scalar(node))


ManifestLoader.add_constructor("tag:yaml.org,2002:timestamp", _as_written)
