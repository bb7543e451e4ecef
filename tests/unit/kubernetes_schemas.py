"""Objects against the schemas of Kubernetes versions, which `kubernetes-validate` has as files.

The library reads the files anew for every object, some megabytes. Here each is read once.
"""

import functools

from kubernetes_validate import ValidationError, utils

from tests.lab.objects import Object

__all__ = ["NEWEST", "OLDEST", "ValidationError", "validate"]

OLDEST, NEWEST = "1.30.0", "1.37.0"
"""The Kubernetes versions against whose schemas the manifests are checked."""

utils.schema_contents = functools.cache(utils.schema_contents)
utils.all_versions = functools.cache(utils.all_versions)


def validate(item: Object, version: str = NEWEST) -> None:
    """Refuse an object that this version of Kubernetes would not take, or that has a field that it does not know.

    Raises:
        ValidationError: the object is wrong.
    """
    utils.validate(item, version, strict=True)
