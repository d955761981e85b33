"""What Kafka's own classes make of requests and responses, in one process of Java."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from java_processes import QUICK_START, cache_dir, fetch_jars, java
from kafka_oracle import SCHEMAS_VERSION, kafka_lib
from make_schemas import ARTIFACTS

from pyspark_kafkalog.version import KafkaVersion

_PROGRAM: Final = Path(__file__).parents[1] / "data" / "KafkaMessages.java"
_ANSWER_SECONDS_MAX: Final = 120
#: The releases that scripts/make_schemas.py compares: the last patch of each minor version.
RELEASES: Final = (KafkaVersion(4, 1, 0), KafkaVersion(4, 2, 1), KafkaVersion(4, 3, 1), SCHEMAS_VERSION)


def schema_jars() -> list[Path]:
    """The jars with the schemas of all `RELEASES`, 13 MB a release."""
    jars = []
    for version in RELEASES:
        wanted = [f"{name}-{version}.jar" for name in ARTIFACTS]
        dependencies = "".join(
            f'    <dependency org="org.apache.kafka" name="{name}" rev="{version}" transitive="false"/>\n'
            for name in ARTIFACTS
        )
        lib = fetch_jars(cache_dir() / f"kafka-schemas-{version}", dependencies, wanted)
        jars += [lib / each for each in wanted]
    return jars


class KafkaMessages:
    """See KafkaMessages.java. `scratch` is a directory for its files."""

    def __init__(self, scratch: Path, version: KafkaVersion = SCHEMAS_VERSION) -> None:
        self._requests, self._answers = scratch / "requests", scratch / "answers"
        command = [java(), *QUICK_START, "-cp", f"{kafka_lib(version)}/*", str(_PROGRAM)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> KafkaMessages:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def answers(self, lines: Sequence[str]) -> list[str]:
        """The answer to each line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests.write_text("".join(f"{line}\n" for line in lines))
        self._process.stdin.write(f"{self._requests}\t{self._answers}\n")
        self._process.stdin.flush()
        assert select.select([self._process.stdout], [], [], _ANSWER_SECONDS_MAX)[0], "Java did not answer"
        assert self._process.stdout.readline() == "done\n"
        found = self._answers.read_text("utf-8").split("\n")[:-1]
        assert len(found) == len(lines)
        return found
