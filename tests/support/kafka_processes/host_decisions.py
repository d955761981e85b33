"""What Kafka's authorizer decides by the hosts of entries: a table of its answers, and how they are made.

`PYTHONPATH=tests/support python -m kafka_processes.host_decisions` writes tests/data/host-decisions.json anew, with
tests/data/HostDecisions.java.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Final

from repository import DATA

from kafka_processes.java_processes import QUICK_START, cache_dir, fetch_jars, java
from kafka_processes.oracle import kafka_lib

PROGRAM: Final = DATA / "HostDecisions.java"
TABLE: Final = DATA / "host-decisions.json"
_COMMONS_NET: Final = "3.13.0"  # the first with ranges of IPv6

#: The addresses of clients, as sockets of this machine may write them.
CLIENTS: Final = (
    "10.1.2.3",
    "10.255.255.255",
    "::ffff:10.1.2.3",
    "::ffff:192.168.7.1",
    "192.168.7.128",
    "127.0.0.1",
    "203.0.113.9",
    "::1",
    "2001:db8::5",
    "2001:db8:0:1::5",
    "2001:DB9::5",
    "fe80::1",
    "64:ff9b::a01:203",
)
#: Hosts of entries: addresses and ranges that Kafka reads.
READ: Final = (
    "*",
    "10.1.2.3",
    "10.1.2.4",
    "0:0:0:0:0:0:0:1",
    "2001:db8:0:0:0:0:0:5",
    "client.example.com",
    "10.0.0.0/8",
    "10.9.9.9/8",
    "10.0.0.0/08",
    "010.0.0.0/8",
    "10.1.2.2/31",
    "10.1.2.3/32",
    "10.1.2.4/31",
    "192.168.7.0/25",
    "192.168.7.128/25",
    "127.0.0.0/8",
    "0.0.0.0/0",
    "128.0.0.0/1",
    "::/0",
    "::1/128",
    "2001:db8::/32",
    "2001:DB8::/64",
    "2001:db8::5/127",
    "2001:db8::/+32",
    "2001:db8:0:1::/64",
    "fe80::%eth0/64",
    "64:ff9b::/96",
    "2001:db8::192.0.2.1/32",
)
#: Hosts of entries that Kafka refuses from a client, and that match none if a log has them.
UNREADABLE: Final = (
    "10.0.0.0/33",
    "10.0.0.0/",
    "10.0.0/8",
    "10.0.0.0/255.0.0.0",
    "256.0.0.0/8",
    " 10.0.0.0/8",
    "10.0.0.0/-1",
    "10.0.0.0/8/8",
    "/8",
    "/",
    "2001:db8::/129",
    "2001:db8::/-1",
    "2001:db8:1/32",
    "::ffff:10.0.0.0/104",
    "::ffff:0:0/96",
    "2001:db8::/32/3",
    "*/0",
)


@dataclass(frozen=True, slots=True)
class HostDecision:
    """Whether a client may do what an entry for `host` allows; with DENY, what another allows to all hosts."""

    permission: str
    host: str
    client: str
    is_allowed: bool


def kept_decisions() -> list[HostDecision]:
    """The table as it was written."""
    return [HostDecision(**each) for each in json.loads(TABLE.read_text())]


def kafka_decisions() -> list[HostDecision]:
    """The table as Kafka's classes answer now."""
    jar = f"commons-net-{_COMMONS_NET}.jar"
    dependency = f'    <dependency org="commons-net" name="commons-net" rev="{_COMMONS_NET}" transitive="false"/>\n'
    ranges = fetch_jars(cache_dir() / f"commons-net-{_COMMONS_NET}", dependency, (jar,)) / jar
    asked = list(product(("ALLOW", "DENY"), (*READ, *UNREADABLE), CLIENTS))
    with tempfile.TemporaryDirectory() as scratch:
        questions, answers = Path(scratch, "questions"), Path(scratch, "answers")
        questions.write_text("".join("\t".join(each) + "\n" for each in asked))
        classpath = f"{kafka_lib()}/*:{ranges}"
        command = [java(), *QUICK_START, "-cp", classpath, str(PROGRAM), str(questions), str(answers)]
        subprocess.run(command, check=True, timeout=300)
        found = answers.read_text().split()
    return [HostDecision(*each, answer == "true") for each, answer in zip(asked, found, strict=True)]


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(asdict(each)) for each in kafka_decisions())
    TABLE.write_text(f"[\n{lines}\n]\n")
