"""The authorities of a cluster, the certificates of its servers, and the accounts of its components."""

import base64
import json
import secrets
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

_EXTENSIONS = """\
basicConstraints=CA:FALSE
keyUsage=critical,digitalSignature,keyEncipherment
extendedKeyUsage={usage}
"""
_AUTHORITY = (
    "-addext",
    "basicConstraints=critical,CA:TRUE",
    "-addext",
    "keyUsage=critical,keyCertSign,digitalSignature",
)


class Credentials:
    """Files in `directory`, made by openssl. `accounts` are names with their groups.

    The authority `ca` has signed all certificates at first. `authorities.crt` has those that clients trust.
    """

    def __init__(self, directory: Path, server: str, names: Iterable[str], accounts: Mapping[str, str]) -> None:
        directory.mkdir(mode=0o700)
        self.directory = directory
        self._server = server
        alternatives = ",".join(f"IP:{name}" if ":" in name or name[0].isdigit() else f"DNS:{name}" for name in names)
        self._names = f"subjectAltName={alternatives}\n"
        self.make_authority("ca")
        self.trust("ca")
        self.certify_server("ca")
        self._certificate("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client", "clientAuth")
        self._certificate("front-proxy-client", "/CN=front-proxy-client", "clientAuth")
        self._openssl("genrsa", "-out", "service-accounts.key", "2048")
        self._tokens = {name: secrets.token_hex(16) for name in accounts}
        rows = (f'{self._tokens[name]},{name},{name},"{group}"\n' for name, group in accounts.items())
        (directory / "tokens.csv").write_text("".join(rows))

    def make_authority(self, name: str) -> None:
        """Make the key and the certificate of an authority."""
        subject = ("-subj", f"/CN={name} of the cluster")
        self._openssl("req", "-x509", *_new_key(name), "-out", f"{name}.crt", *subject, *_AUTHORITY)

    def trust(self, *authorities: str) -> None:
        """Let clients trust these authorities, and no others."""
        (self.directory / "authorities.crt").write_text("".join(self.file(f"{name}.crt") for name in authorities))

    def certify_server(self, authority: str) -> None:
        """Make another certificate for the API server."""
        self._certificate("server", "/CN=kube-apiserver", "serverAuth", self._names, authority)

    def file(self, name: str) -> str:
        return (self.directory / name).read_text()

    def kubeconfig(self, account: str) -> str:
        """The kubeconfig of an account."""
        authority = base64.b64encode(self.file("authorities.crt").encode()).decode()
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {"name": "lab", "cluster": {"server": self._server, "certificate-authority-data": authority}}
                ],
                "users": [{"name": account, "user": {"token": self._tokens[account]}}],
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": account}}],
                "current-context": "lab",
            },
            indent=1,
        )

    def _certificate(self, name: str, subject: str, usage: str, more: str = "", by: str = "ca") -> None:
        (self.directory / f"{name}.extensions").write_text(_EXTENSIONS.format(usage=usage) + more)
        self._openssl("req", *_new_key(name), "-out", f"{name}.request", "-subj", subject)
        signed_by = ("-CA", f"{by}.crt", "-CAkey", f"{by}.key", "-CAcreateserial", "-extfile", f"{name}.extensions")
        self._openssl("x509", "-req", "-in", f"{name}.request", *signed_by, "-out", f"{name}.crt")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)


def _new_key(name: str) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key")
