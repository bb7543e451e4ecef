"""The API server's address and the credentials for it.

The order is that of kube-proxy: a kubeconfig file, in which `--master` replaces the server's address; `--master` alone,
without credentials; the Pod's service account.
"""

from kroute.settings import Settings
from kroute.watchers.kubernetes.authentication.configuration import Configuration, Credentials, checked_url
from kroute.watchers.kubernetes.authentication.service_account import InClusterCredentials


class MasterCredentials:
    """A server's URL without any credentials."""

    def __init__(self, url: str) -> None:
        self.configuration = Configuration(checked_url(url))

    async def refresh(self, *, rejected: bool = False) -> None:
        """Do nothing: there are no credentials."""

    async def headers(self) -> dict[str, str]:
        return {}


async def load_credentials(settings: Settings) -> Credentials:
    """The credentials that the settings name.

    Raises:
        ConfigurationError: the file, the URL or the service account cannot be used.
    """
    if settings.kubeconfig is not None:
        from kroute.watchers.kubernetes.authentication.kubeconfig import (  # noqa: PLC0415  0.05 s; not in a Pod
            KubeconfigCredentials,
        )

        kubeconfig = KubeconfigCredentials(settings.kubeconfig, settings.master)
        await kubeconfig.load()
        return kubeconfig
    if settings.master is not None:
        return MasterCredentials(settings.master)
    return InClusterCredentials()
