"""The alerts, evaluated by promtool."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.manifests import DEPLOY

pytestmark = pytest.mark.prometheus

ALERTS = DEPLOY / "prometheus/alerts.yaml"
CASES = Path(__file__).with_name("rules.yaml")


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_annotations(rules: dict[str, Any]) -> dict[str, Any]:
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    return rules


def test_the_rule_file_is_correct_with_its_templates() -> None:
    promtool("check", "rules", ALERTS)


def test_each_alert_fires_at_its_fault_and_at_nothing_else(tmp_path: Path) -> None:
    rules = without_annotations(yaml.safe_load(ALERTS.read_text()))
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rules))
    (tmp_path / "cases.yaml").write_text(CASES.read_text())
    promtool("test", "rules", tmp_path / "cases.yaml")


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    alerts = {rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
    looked = [look for case in yaml.safe_load(CASES.read_text())["tests"] for look in case["alert_rule_test"]]
    assert {look["alertname"] for look in looked if look.get("exp_alerts")} == alerts
    assert {look["alertname"] for look in looked if not look.get("exp_alerts")} == alerts
