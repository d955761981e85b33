"""Every metadata record type and version, and our own metadata log, before Kafka's dump tool."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from builders.message_fields import kafka_text
from builders.metadata_roots import commit_files
from kafka_processes.oracle import KAFKA_VERSION, SCHEMAS_VERSION, dump_log

from pyspark_kafkalog.metadata.image import partition_state_record
from pyspark_kafkalog.metadata.local import log
from pyspark_kafkalog.metadata.messages.codec import MessageSchema, json_text
from pyspark_kafkalog.metadata.messages.metadata_records import METADATA_RECORDS, WriteCommitRecord, WrittenPartition
from pyspark_kafkalog.metadata.messages.records import NATIVE_API_KEYS_FROM, encode_record
from pyspark_kafkalog.metadata.messages.schema import FieldSpec, load_schema_file
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.admin import alter_configs, create_topic, delete_topic
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import encode_uuid
from pyspark_kafkalog.version import KafkaVersion

_BITS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 63}
_STRINGS = ("", "plain", 'quote " and \\', "tab\tbell\x07del\x7f", "é Ж 漢 😀 \u2028")
_DOUBLES = (0.0, 1.5, 1e7, 123456.75, 2.5e-5, -1e10)


def value(rng: random.Random, field: FieldSpec, version: int) -> Any:
    if version not in field.versions or rng.random() < 0.15:
        return field.default
    if version in field.nullable and rng.random() < 0.25:
        return None
    if field.is_array:
        return tuple(element(rng, field, version) for _ in range(rng.randrange(3)))
    return element(rng, field, version)


def element(rng: random.Random, field: FieldSpec, version: int) -> Any:
    if field.struct is not None:
        return {inner.name: value(rng, inner, version) for inner in field.struct}
    if field.element in _BITS:
        largest = (1 << _BITS[field.element]) - 1
        return rng.choice([0, 1, largest, rng.randint(0, largest)])
    return {
        "bool": lambda: rng.random() < 0.5,
        "float64": lambda: rng.choice(_DOUBLES),
        "uuid": lambda: encode_uuid(rng.randbytes(16)),
        "string": lambda: rng.choice(_STRINGS),
        "bytes": lambda: rng.randbytes(rng.randrange(5)),
    }[field.element]()


def message(rng: random.Random, schema: MessageSchema, version: int) -> dict[str, Any]:
    return {field.name: value(rng, field, version) for field in schema.spec.fields}


def dumped(file: Path, option: str, pattern: str, version: KafkaVersion = SCHEMAS_VERSION) -> list[tuple[str, ...]]:
    result = dump_log([file], option, version=version)
    assert result.returncode == 0, result.stderr
    assert "isvalid: true" in result.stdout
    return re.findall(rf"^\| offset: \d+ .*? headerKeys: \[\] {pattern}$", result.stdout, re.MULTILINE)


def test_kafka_prints_every_metadata_record_as_we_do(tmp_path: Path) -> None:
    rng = random.Random(3)
    types = {each.__name__: each for each in METADATA_RECORDS}
    records = []
    for spec in load_schema_file("cluster_metadata").values():
        schema = MessageSchema.load(spec.name)
        for version in spec.versions:
            data = [schema.encode(version, message(rng, schema, version)) for _ in range(8)]
            records += [(types[spec.name].decode(version, each), version) for each in data]
    batch = [
        Record(offset=i, timestamp_ms=1, key=None, value=encode_record(record, version=version))
        for i, (record, version) in enumerate(records)
    ]
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(encode_batch(batch))
    found = dumped(file, "--cluster-metadata-decoder", "payload: (.*)")
    assert found == [kafka_text(record, version) for record, version in records]


@pytest.mark.parametrize(
    ("schema_file", "option", "kafka_version"),
    [
        ("group_coordinator", "--offsets-decoder", SCHEMAS_VERSION),
        # Kafka 4.4 prints names of statuses.
        ("transaction_coordinator", "--transaction-log-decoder", min(KAFKA_VERSION, KafkaVersion(4, 3, 1))),
        ("share_coordinator", "--share-group-state-decoder", SCHEMAS_VERSION),
    ],
)
def test_kafka_prints_every_coordinator_record_as_we_do(
    tmp_path: Path, schema_file: str, option: str, kafka_version: KafkaVersion
) -> None:
    rng = random.Random(4)
    batch, expected = [], []
    for spec in load_schema_file(schema_file).values():
        if not spec.name.endswith("Key"):
            continue
        key_schema = MessageSchema.load(spec.name)
        value_schema = MessageSchema.load(spec.name.removesuffix("Key") + "Value")
        for version in value_schema.spec.versions:
            for _ in range(8):
                key, body = message(rng, key_schema, 0), message(rng, value_schema, version)
                batch.append(
                    Record(
                        offset=len(batch),
                        timestamp_ms=1,
                        key=struct.pack(">h", spec.api_key) + key_schema.encode(0, key),
                        value=struct.pack(">h", version) + value_schema.encode(version, body),
                    )
                )
                expected.append(
                    (
                        json_text({"type": str(spec.api_key), "data": key_schema.to_json(0, key)}),
                        json_text({"version": str(version), "data": value_schema.to_json(version, body)}),
                    )
                )
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(encode_batch(batch))
    assert dumped(file, option, "key: (.*) payload: (.*)", kafka_version) == expected


def test_kafka_decodes_our_metadata_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = create_root(tmp_path / "root")
    store.commit(
        lambda image: create_topic(image, "orders", partitions=3, configs={"retention.ms": "7"}), operation="create"
    )
    topic_id = store.image.topic("orders").topic_id
    written = WrittenPartition(topic_id=topic_id, partition=0, first_offset=0, records=4, bytes=90)
    state = LogState(log_end_offset=4, active_size_bytes=90)
    store.commit(
        lambda image: [
            WriteCommitRecord(write_id="w", partitions=(written,), transactional_id="q", transaction_version=1),
            partition_state_record(topic_id, 0, state),
        ],
        operation="write",
    )
    store.commit(lambda image: alter_configs(image, "orders", delete=["retention.ms"]), operation="alter")
    monkeypatch.setattr(log, "COMMIT_FILE_BYTES", 0)
    store.commit(lambda image: delete_topic(image, "orders"), operation="delete")  # begins a file
    commits = list(store.log.replay())
    assert len(commit_files(store.root)) == 2
    result = dump_log(commit_files(store.root), "--cluster-metadata-decoder")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("isvalid: true") == len(commits) == 5
    assert "isvalid: false" not in result.stdout
    payloads = re.findall(r"^\| offset: (\d+) .*? payload: (.*)$", result.stdout, re.MULTILINE)
    records = [record for commit in commits for record in commit.records]
    assert len(payloads) == len(records)
    for record, (offset, payload) in zip(records, payloads, strict=True):
        api_key = record.schema().api_key
        if api_key >= NATIVE_API_KEYS_FROM:
            assert payload.startswith(f"Error at {offset}, skipping.")
            assert payload.endswith(f"Unknown metadata id {api_key}")
        else:
            assert payload == kafka_text(record)
