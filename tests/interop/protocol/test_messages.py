"""Requests and responses beside Kafka's own classes: equal bytes, equal values, and the same refusals."""

from __future__ import annotations

import json
import random
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import pytest
from builders.message_fields import fields_of
from kafka_processes.java_processes import QUICK_START, cache_dir, fetch_jars, java
from kafka_processes.oracle import KAFKA_VERSION, OLDEST_VERSION, SCHEMAS_VERSION, kafka_lib
from make_schemas import ARTIFACTS
from repository import DATA, REPOSITORY
from simulations.random_messages import RandomMessages
from tiers import SEED, examples

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError
from pyspark_kafkalog.metadata.messages.codec import json_text
from pyspark_kafkalog.protocol.api import APIS, ApiKey, encode_request, encode_response, joined
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.version import KafkaVersion

_PROGRAM: Final = DATA / "KafkaMessages.java"
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


SCRIPT: Final = REPOSITORY / "scripts" / "make_schemas.py"
EXAMPLES: Final = examples(25)
CLASSES: Final = [cls for api in APIS.values() for cls in (api.request, api.response)]
#: Each message in each of its versions.
VERSIONS: Final = [(cls, version) for cls in CLASSES for version in cls.schema().spec.versions]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaMessages]:
    with KafkaMessages(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def source() -> random.Random:
    print(f"KAFKALOG_SEED={SEED}")
    return random.Random(SEED)


def encoded_or_unsupported(message: ApiMessage, version: int) -> str:
    try:
        return message.encode(version).hex()
    except InvalidRecordError:
        return "unsupported"


def is_message(answer: str, encoded: str, message: ApiMessage, version: int) -> bool:
    """Whether Kafka has encoded a message to these bytes, and has the same values in it."""
    found, _, text = answer.partition(" ")
    ours = json_text(message.schema().to_json(version, fields_of(message)))
    # Before Java 19 some numbers have more digits than they need.
    return found == encoded and (text == ours or json.loads(text) == json.loads(ours))


def test_schemas_are_those_of_kafkas_jars() -> None:
    jars = schema_jars()
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, jars), "--check"], check=False)
    assert done.returncode == 0, f"run python {SCRIPT.relative_to(REPOSITORY)} with {', '.join(map(str, jars))}"


def test_random_messages_are_decoded_and_encoded_as_by_kafka(kafka: KafkaMessages, source: random.Random) -> None:
    drawn = RandomMessages(source)
    cases = []
    for cls, version in VERSIONS * EXAMPLES:
        message = drawn.draw(cls, version)
        data = message.encode(version)
        other_version = source.choice(cls.schema().spec.versions)
        cases.append((cls, version, other_version, data))
    asked = [f"message {cls.__name__} {read} {write} {data.hex()}" for cls, read, write, data in cases]
    seen_unsupported = 0
    for (cls, read, write, data), line, answer in zip(cases, asked, kafka.answers(asked), strict=True):
        decoded = cls.decode(read, data)
        assert decoded.encode(read) == data, line
        expected = encoded_or_unsupported(decoded, write)
        if expected == "unsupported":
            assert answer == "unsupported", line
            seen_unsupported += 1
        else:
            assert is_message(answer, expected, decoded, read), line
    assert 0 < seen_unsupported < len(cases) / 2


def test_messages_without_values_are_those_of_kafka(kafka: KafkaMessages) -> None:
    answers = kafka.answers([f"default {cls.__name__} {version}" for cls, version in VERSIONS])
    for (cls, version), answer in zip(VERSIONS, answers, strict=True):
        assert is_message(answer, cls().encode(version).hex(), cls(), version), f"{cls.__name__} of version {version}"


def test_damaged_messages_are_refused_or_read_as_by_kafka(kafka: KafkaMessages, source: random.Random) -> None:
    drawn = RandomMessages(source)
    cases = []
    for cls, version in VERSIONS * EXAMPLES:
        data = bytearray(drawn.draw(cls, version).encode(version))
        for _ in range(source.choice((1, 1, 2, 5))):
            damage(data, source)
        cases.append((cls, version, bytes(data)))
    asked = [f"message {cls.__name__} {version} {version} {data.hex()}" for cls, version, data in cases]
    seen = {"refused": 0, "read": 0}
    for (cls, version, data), line, answer in zip(cases, asked, kafka.answers(asked), strict=True):
        try:
            decoded = cls.decode(version, data)
        except CorruptRecordError:
            seen["refused"] += 1
            continue
        seen["read"] += 1
        assert is_message(answer, decoded.encode(version).hex(), decoded, version), line
    assert min(seen.values()) > len(cases) / 20, seen


def damage(data: bytearray, source: random.Random) -> None:
    if not data or source.random() < 0.1:
        data += source.randbytes(source.randint(1, 3))
        return
    at = source.randrange(len(data))
    kind = source.random()
    if kind < 0.5:
        data[at] = source.choice((0, 1, 2, 0x7F, 0x80, 0xFF, source.randrange(256)))
    elif kind < 0.7:
        del data[at]
    elif kind < 0.9:
        data[at:at] = source.choice((b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x80\x00", b"\x7f\xff\xff\xff", b"\0"))
    else:
        del data[at:]


def test_headers_are_those_of_kafka(kafka: KafkaMessages) -> None:
    cases = [(api, version) for api in APIS.values() for version in api.versions]
    answers = kafka.answers([f"headers {int(api.key)} {version}" for api, version in cases])
    for (api, version), answer in zip(cases, answers, strict=True):
        request, response = api.request(), api.response()
        ours = (
            joined(encode_request(api, version, 7, "c", request))[4:].removesuffix(request.encode(version)),
            joined(encode_response(api, version, 7, response))[4:].removesuffix(response.encode(version)),
        )
        assert [each.hex() for each in ours] == answer.split(" "), f"{api.key.name} of version {version}"


@pytest.mark.parametrize("version", [OLDEST_VERSION, KAFKA_VERSION, SCHEMAS_VERSION], ids=str)
def test_versions_are_those_that_a_broker_of_kafka_offers(tmp_path: Path, version: KafkaVersion) -> None:
    with KafkaMessages(tmp_path, version) as kafka:
        (answer,) = kafka.answers(["versions"])
    offered = {int(key): versions for key, _, versions in (each.partition(":") for each in answer.split(" "))}
    for api in APIS.values():
        since = api.request.schema().spec.since
        expected = [each for each in api.versions if since.get(each, OLDEST_VERSION) <= version]
        if api.key != ApiKey.FETCH_SNAPSHOT:  # of controllers
            assert f"{expected[0]}-{expected[-1]}" == offered[api.key], api.key.name


def test_error_codes_are_those_of_kafka(kafka: KafkaMessages) -> None:
    (answer,) = kafka.answers(["errors"])
    ours = [f"{int(each)}:{each.name}:{str(each.retriable).lower()}" for each in ErrorCode]
    assert sorted(ours) == sorted(answer.split(" "))
