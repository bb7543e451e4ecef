"""What an installation would meet: `kroute check --cluster`, and `check` and `values` of the plugin.

One reader has two transports: kubectl, with the contexts and plugins of the user's own calls, and kroute's client, for
a machine or an image without kubectl.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

import click
import msgspec

from kroute.checks.cluster_checks import CNI, NAMESPACE, NEIGHBOURS, NODES, PROXY, VERSION, check_cluster
from kroute.checks.cluster_reader import UNREAD, Cluster, Get, Query, read_cluster
from kroute.checks.finding import Finding, Level, failed, ok
from kroute.cli.chart_values import API_SERVER, PODS, SERVICES, SETTINGS, text_of, values_of
from kroute.cli.fleet.kubectl import Kubectl, KubectlError
from kroute.cli.terminal.output import DONE, FAILURE, complain
from kroute.settings import Settings
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.errors import ApiError, ConfigurationError

API = "api"
_ORDER = (API, VERSION, API_SERVER, NODES, NAMESPACE, PROXY, CNI, PODS, SERVICES, NEIGHBOURS, SETTINGS, UNREAD)
_STATUS = {"NotFound": 404, "Forbidden": 403}
"""HTTP status codes by the word of kubectl's `Error from server (…)`."""


async def write_values(kubectl: Kubectl, namespace: str) -> int:
    """Write values.yaml to standard output, and what is missing in it to standard error. Returns the exit code."""
    try:
        values = values_of(await read_cluster(by_kubectl(kubectl), namespace))
    except ApiError as error:
        complain(_unreachable(error))
        return FAILURE
    click.echo(text_of(values, namespace), nl=False)
    failures = [each for each in values.findings if each.level is Level.FAIL]
    for failure in failures:
        complain(failure)
    return FAILURE if failures else DONE


def by_kubectl(kubectl: Kubectl) -> Get:
    async def get(path: str, query: Query) -> bytes:
        try:
            return await kubectl.get(f"{path}?{urlencode(query)}" if query else path)
        except KubectlError as error:
            reason = str(error).partition("Error from server (")[2].partition(")")[0]
            raise ApiError(_STATUS.get(reason, 0), reason, str(error)) from None

    return get


async def findings_by(get: Get, namespace: str) -> list[Finding]:
    """Everything that was found, in the order in which an installation meets it."""
    try:
        return findings_of(await read_cluster(get, namespace))
    except ApiError as error:
        return [_unreachable(error)]


async def findings_by_api(settings: Settings, namespace: str) -> list[Finding]:
    """The same by kroute's own client: by `--kubeconfig`, else by kubectl's usual file, else as a pod."""
    try:
        async with await Api.open(with_kubeconfig(settings)) as api:
            return await findings_by(api.get, namespace)
    except ConfigurationError as error:
        return [_unreachable(error)]


def findings_of(cluster: Cluster) -> list[Finding]:
    found = [*check_cluster(cluster), *values_of(cluster).findings, *sorted(cluster.unread, key=str)]
    return [ok(API, "the API server answers"), *sorted(found, key=lambda each: _ORDER.index(each.check))]


def _unreachable(error: Exception) -> Finding:
    return failed(API, f"the cluster cannot be read: {error}", "correct the kubeconfig or its context")


def with_kubeconfig(settings: Settings) -> Settings:
    """The settings with kubectl's usual kubeconfig, where nothing else says how to reach the API server.

    Raises:
        ConfigurationError: KUBECONFIG names several files, which only kubectl merges; or there is none.
    """
    if settings.kubeconfig or settings.master or "KUBERNETES_SERVICE_HOST" in os.environ:
        return settings
    paths: Sequence[str] = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    if len(paths) > 1:
        raise ConfigurationError("KUBECONFIG names several files: give one by --kubeconfig, or use `kubectl kroute`")
    path = Path(paths[0]) if paths else Path.home() / ".kube" / "config"
    if not path.is_file():
        raise ConfigurationError(f"there is no kubeconfig {path}: give one by --kubeconfig")
    return msgspec.structs.replace(settings, kubeconfig=path)
