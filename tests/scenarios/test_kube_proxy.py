"""The stand-in for kube-proxy answers and writes what the recorded kube-proxy 1.36.2 did, and so does the real one.

`tests/real_proxies/running.py` says what is compared.
"""

import difflib
import json
from pathlib import Path

import pytest

from tests.lab import kubernetes
from tests.real_proxies.running import observe, recorded

MODES = [
    pytest.param("iptables", marks=pytest.mark.legacy),
    pytest.param("ipvs", marks=pytest.mark.legacy),
    pytest.param("nftables", marks=pytest.mark.nftables),
]


@pytest.mark.drawn(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_real", [False, True], ids=["stand-in", "real"])
async def test_it_does_what_the_recorded_one_did(mode: str, is_real: bool) -> None:
    program: Path | None = kubernetes.program("kube-proxy") if is_real else None
    if is_real and program is None:
        pytest.skip(str(kubernetes.missing("kube-proxy")))
    seen, wanted = await observe(mode, program), recorded(mode)
    metrics = set(seen.pop("metrics")), set(wanted.pop("metrics"))
    assert metrics[0] == metrics[1] if is_real else metrics[0] <= metrics[1]
    texts = [json.dumps(it, indent=1, sort_keys=True).splitlines() for it in (wanted, seen)]
    differences = list(difflib.unified_diff(*texts, "recorded", "seen", lineterm="", n=1))
    assert not differences, "\n".join(differences[:60])
