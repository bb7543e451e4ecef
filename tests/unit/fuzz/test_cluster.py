"""Whatever the objects of a cluster contain, there are findings, and values that the chart takes."""

import asyncio
import json
import math
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from kroute.checks.cluster_reader import Get, Query, read_cluster
from kroute.cli.chart_values import text_of, values_of
from kroute.cli.installation import findings_of
from kroute.watchers.kubernetes.errors import ApiError
from tests.apiserver.resources import Object
from tests.unit import chart_schema
from tests.unit.cli import clusters
from tests.unit.fuzz.strategies import damaged, fuzzed, hostile_json, spoilt

CLUSTERS = (clusters.kubeadm(), clusters.k3s(2), clusters.kube_router(), clusters.cilium(), clusters.calico())
CONF = clusters.kube_proxy()[1]["data"]["config.conf"]
SCHEMA = Draft7Validator(chart_schema.schema()["properties"]["settings"])


def check(get: Get) -> None:
    cluster = asyncio.run(read_cluster(get, "kube-system"))
    values = values_of(cluster)
    assert all(finding.message for finding in findings_of(cluster))
    content = yaml.safe_load(text_of(values, "kube-system"))
    assert content.keys() <= {"apiServer", "iptables", "settings"}
    SCHEMA.validate(content["settings"])


def answers_of(objects: list[Object]) -> dict[str, bytes]:
    """What is asked of the API server of this cluster, and its answers."""
    answers: dict[str, bytes] = {}
    get = clusters.get_of(objects)

    async def keep(path: str, query: Query) -> bytes:
        answers[path] = await get(path, query)
        return answers[path]

    asyncio.run(read_cluster(keep, "kube-system"))
    return answers


ANSWERS = [answers_of(objects) for objects in CLUSTERS]


@fuzzed
@given(st.data())
def test_hostile_answers(data: st.DataObject) -> None:
    answers = dict(data.draw(st.sampled_from(ANSWERS)))
    path = data.draw(st.sampled_from([path for path in answers if path != "/version"]))
    answers[path] = data.draw(st.one_of(spoilt(json.loads(answers[path])), damaged(answers[path])))

    async def get(path: str, _query: Query) -> bytes:
        if path not in answers:
            raise ApiError(404, "NotFound", "not found")
        return answers[path]

    check(get)


def _hashes(value: Any) -> bool:
    return not (isinstance(value, float) and math.isnan(value))


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just("9" * 400 + "s"))
odd = st.recursive(scalars, lambda more: st.lists(more, max_size=3) | st.dictionaries(scalars.filter(_hashes), more))


@fuzzed
@given(st.data())
def test_hostile_fields_of_kube_proxys_configuration(data: st.DataObject) -> None:
    content = yaml.safe_load(CONF)
    for _ in range(data.draw(st.integers(1, 4))):
        section = data.draw(st.sampled_from([content, *(it for it in content.values() if isinstance(it, dict))]))
        if section:
            section[data.draw(st.sampled_from([*section, "more"]))] = data.draw(odd)
    proxy, config = clusters.kube_proxy()
    config["data"]["config.conf"] = yaml.safe_dump(content)
    check(clusters.get_of([proxy, config]))


@fuzzed
@given(damaged(CONF.encode()), hostile_json)
def test_hostile_bytes_of_kube_proxys_configuration(conf: bytes, other: bytes) -> None:
    proxy, config = clusters.kube_proxy()
    texts = (conf.decode(errors="replace"), other.decode(errors="replace"))
    config["data"] = dict(zip(("config.conf", "kubeconfig.conf"), texts, strict=True))
    check(clusters.get_of([proxy, config]))


@fuzzed
@given(
    st.lists(st.one_of(st.text(max_size=20), st.sampled_from(["--config", "--v=2", "--cluster-cidr=x"])), max_size=5)
)
def test_hostile_arguments(words: list[str]) -> None:
    programs = [clusters.container(name, name, *words) for name in ("kube-proxy", "kube-router")]
    node = clusters.node("a", annotations={"k3s.io/node-args": json.dumps(["server", *words])})
    check(clusters.get_of([node, *(clusters.daemon_set(it["name"], it) for it in programs)]))
