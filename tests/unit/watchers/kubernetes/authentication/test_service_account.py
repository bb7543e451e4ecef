"""The service account of a Pod: where its server is, and its token, which the kubelet replaces."""

from pathlib import Path

import pytest

from kroute.watchers.kubernetes.authentication.configuration import Configuration
from kroute.watchers.kubernetes.authentication.service_account import HOST, PORT, InClusterCredentials
from kroute.watchers.kubernetes.errors import ConfigurationError


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "ca.crt").write_text("certificate")
    monkeypatch.setenv(HOST, "10.96.0.1")
    monkeypatch.setenv(PORT, "443")
    return tmp_path


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("10.96.0.1", "https://10.96.0.1:443"),
        ("api.example.org", "https://api.example.org:443"),
        ("fd00:10:96::1", "https://[fd00:10:96::1]:443"),
        ("fe80::1%eth0", "https://[fe80::1%eth0]:443"),
    ],
)
def test_its_server_is_that_of_the_variables(
    account: Path, monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    monkeypatch.setenv(HOST, host)
    assert InClusterCredentials(account).configuration == Configuration(
        url, {"authorization": "Bearer secret"}, authority=account / "ca.crt"
    )


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        (HOST, f"{HOST} and {PORT} are not set"),
        (PORT, f"{HOST} and {PORT} are not set"),
        ("token", "No such file or directory: '.*/token'"),
        ("ca.crt", "No such file or directory: '.*/ca.crt'"),
    ],
)
@pytest.mark.parametrize("how", ["absent", "empty"])
def test_what_is_lacking_for_it_is_said(
    account: Path, monkeypatch: pytest.MonkeyPatch, lacking: str, said: str, how: str
) -> None:
    if lacking.isupper() and how == "empty":
        monkeypatch.setenv(lacking, "")
    elif lacking.isupper():
        monkeypatch.delenv(lacking)
    elif how == "empty":
        (account / lacking).write_text("")
        said = f"{lacking} is empty"
    else:
        (account / lacking).unlink()
    with pytest.raises(ConfigurationError, match=f"this is not a Pod of a cluster .*{said}.*give --kubeconfig FILE"):
        InClusterCredentials(account)


class TestToken:
    """The token in use is that of the file, no older than a minute."""

    @pytest.fixture
    def now(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [1000.0]
        monkeypatch.setattr("kroute.watchers.kubernetes.authentication.service_account.time.monotonic", lambda: now[0])
        return now

    async def test_a_replaced_one_is_used_after_a_minute(self, account: Path, now: list[float]) -> None:
        credentials = InClusterCredentials(account)
        (account / "token").write_text("newer\n")
        now[0] += 59
        await credentials.refresh()
        assert credentials.configuration.headers == {"authorization": "Bearer secret"}
        now[0] += 1
        await credentials.refresh()
        assert credentials.configuration.headers == {"authorization": "Bearer newer"}

    async def test_one_that_the_server_refuses_is_read_again_at_once(self, account: Path, now: list[float]) -> None:
        credentials = InClusterCredentials(account)
        (account / "token").write_text("newer")
        await credentials.refresh(rejected=True)
        assert credentials.configuration.headers == {"authorization": "Bearer newer"}

    async def test_one_that_cannot_be_read_is_tried_again(self, account: Path, now: list[float]) -> None:
        credentials = InClusterCredentials(account)
        (account / "token").unlink()
        for _ in range(2):
            now[0] += 60
            with pytest.raises(ConfigurationError, match=r"the service account's token cannot be read: .*No such file"):
                await credentials.refresh()
        (account / "token").write_text("newer")
        await credentials.refresh()
        assert credentials.configuration.headers == {"authorization": "Bearer newer"}
