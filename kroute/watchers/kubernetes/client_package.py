"""The parts of kubernetes-asyncio that kroute uses, without its model classes.

Importing `kubernetes_asyncio` runs package files that import some 700 generated models. kroute decodes the API's bytes
itself and does not need them; they would cost 0.20 s of processor time and 34 MiB in every agent. All of urllib3 would
be imported for one function that encodes a name and a password: 0.02 s and 1.7 MiB. So `_prepare` registers the
packages without running their files. Access to a submodule imports it by its own name. Access to any other name runs
the package's file after all, so code that needs the whole package still gets it.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_PACKAGES = ("kubernetes_asyncio", "kubernetes_asyncio.client", "kubernetes_asyncio.client.models", "urllib3")
_CLASSES = {"ApiClient": "api_client", "Configuration": "configuration"}
"""The classes that the rest of kubernetes-asyncio takes from `kubernetes_asyncio.client`, and the submodules that
define them."""


class _PackageOnDemand(ModuleType):
    """A package whose own file has not run. Its submodules can be imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(name)
        if name in _CLASSES and self.__name__ == "kubernetes_asyncio.client":
            return getattr(importlib.import_module(f"{self.__name__}.{_CLASSES[name]}"), name)
        if importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        self.__class__ = ModuleType  # type: ignore[assignment]  # from here on it is the real package
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def _prepare() -> None:
    """Register the packages that are not imported yet."""
    for name in _PACKAGES:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"{name} is not installed: install kroute with its dependencies", name=name)
        package = importlib.util.module_from_spec(spec)
        package.__class__ = _PackageOnDemand
        sys.modules[name] = package


def _deferred(module: str, name: str) -> type:
    """A class that imports another one when it is to make an object, and makes it of that one."""

    def make(_cls: type, *arguments: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*arguments, **named)

    return type(name, (), {"__new__": make})


@contextmanager
def _left_out() -> Iterator[None]:
    """Let what is imported inside have OpenID Connect and kubernetes-asyncio's own client only when they are called.

    Both need aiohttp: 0.3 s of processor time and 12 MiB. `kroute.watchers.kubernetes.http` makes the requests. The
    client's `Configuration` would load http.client and email; kroute has its own of the same fields.
    """
    client, openid = sys.modules["kubernetes_asyncio.client"], "kubernetes_asyncio.config.openid"
    if openid in sys.modules or type(client) is not _PackageOnDemand:
        yield
        return
    for name, module in _CLASSES.items():
        vars(client)[name] = _deferred(f"kubernetes_asyncio.client.{module}", name)
    stand_in = ModuleType(openid)
    vars(stand_in)["OpenIDRequestor"] = _deferred(openid, "OpenIDRequestor")
    sys.modules[openid] = stand_in
    try:
        yield
    finally:
        del sys.modules[openid]
        for name in _CLASSES:
            vars(client).pop(name, None)


_prepare()

with _left_out():
    from kubernetes_asyncio.config import (
        ConfigException,
        kube_config,
        load_kube_config,
    )
    from kubernetes_asyncio.config.exec_provider import ExecProvider

__all__ = [
    "ConfigException",
    "ExecProvider",
    "kube_config",
    "load_kube_config",
]
