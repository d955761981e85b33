"""Rules for the principals of certificates make of a subject what Kafka's own class makes of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest
from kafka_processes.java_processes import QUICK_START, java
from kafka_processes.oracle import kafka_lib
from repository import DATA

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.server.security.certificates import PrincipalMapping

SUBJECTS: Final = (
    "CN=app",
    "CN=Duke,OU=ServiceUsers,O=Org,C=US",
    "CN=duke\\, the 2nd,OU=SME,O=mycp,L=Fulton,ST=MD,C=US",
    "CN=duke,OU=JavaSoft,O=Sun Microsystems",
    "UID=7,CN=a b,DC=example,DC=com",
    "OU=Admin,CN=Éva",
    "CN=line\nbreak,O=x",
    "",
)
RULES: Final = (
    "DEFAULT",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT",
    " RULE:CN=(.*)/$1/U ,RULE:.*CN=(\\w+).*/$1@$0/, RULE:UID=(\\d+),.*/user-$1/",
    "RULE:(.*)/x$1/",
    "RULE:CN=(.*?),?/$1/,RULE:.*/none/",
    "RULE:(?:CN|OU)=(([^,\\\\]|\\\\.)+)(,.*)?/$1$12$3/",
    "RULE:CN=([^,]*),(?!OU).*/$1\\$1/",
    "RULE:.*O=([A-Z][a-z]{1,3})\\s?.*/\\/$1\\/$10/L,DEFAULT",
    "RULE:^(CN)=(.){3,}$/$2$1/,RULE:.*/fixed, with a comma/",
)


PROGRAM = DATA / "PrincipalRules.java"


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
