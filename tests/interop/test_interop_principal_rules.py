"""Rules for the principals of certificates make of a subject what Kafka's own class makes of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from java_processes import QUICK_START, java
from kafka_oracle import kafka_lib
from principal_rules import RULES, SUBJECTS

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.server.security.authentication.principal_mapping import PrincipalMapping

PROGRAM = Path(__file__).parents[1] / "data" / "PrincipalRules.java"


def answer(rules: str, subject: str) -> str:
    try:
        name = PrincipalMapping.parse(rules).principal(subject).removeprefix("User:")
    except InvalidRecordError:
        return "none"
    return "=" + name.encode().hex()


@pytest.mark.full
def test_rules_make_of_subjects_what_kafka_makes_of_them(tmp_path: Path) -> None:
    for name, texts in (("rules", RULES), ("subjects", SUBJECTS)):
        (tmp_path / name).write_text("".join(f"{each.encode().hex()}\n" for each in texts))
    files = [str(tmp_path / each) for each in ("rules", "subjects", "answers")]
    subprocess.run([java(), *QUICK_START, "-cp", f"{kafka_lib()}/*", str(PROGRAM), *files], check=True, timeout=300)
    expected = (tmp_path / "answers").read_text().splitlines()
    asked = [(rules, subject) for rules in RULES for subject in SUBJECTS]
    found = [answer(*each) for each in asked]
    different = [each for each in zip(asked, found, expected, strict=True) if each[1] != each[2]]
    assert not different
    assert {"none", "=617070"} <= set(found)
