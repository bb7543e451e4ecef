"""The credentials for the API server, and its address where `--master` names none.

The order is that of kube-proxy: a kubeconfig file, in which `--master` replaces the server's address; `--master` alone;
the Pod's service account. `--master` alone has no credentials, except in a Pod: servers with https:// get the token of
the service account, and must have a certificate of its authority.
"""

from kroute.settings import Settings
from kroute.watchers.kubernetes.authentication import service_account
from kroute.watchers.kubernetes.authentication.configuration import Credentials


async def load_credentials(settings: Settings) -> Credentials:
    """The credentials that the settings name.

    Raises:
        ConfigurationError: the file or the service account cannot be used.
    """
    if settings.kubeconfig is not None:
        from kroute.watchers.kubernetes.authentication.kubeconfig import (  # noqa: PLC0415  0.02 s; not in a Pod
            KubeconfigCredentials,
        )

        kubeconfig = KubeconfigCredentials(settings.kubeconfig)
        await kubeconfig.load()
        return kubeconfig
    if not settings.master:
        return service_account.InClusterCredentials()
    server = settings.master[0]
    if server.startswith("https:") and (service_account.DIRECTORY / "token").exists():
        return service_account.InClusterCredentials(host=server)
    return Credentials(server)
