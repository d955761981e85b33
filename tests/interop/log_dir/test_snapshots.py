"""Metadata snapshots of ours before Kafka's dump tool."""

from __future__ import annotations

import re
from pathlib import Path

from builders.message_fields import kafka_text
from builders.metadata_roots import add_topic, settings_of, snapshot_files, write_to
from fakes.clock import Clock
from kafka_processes.oracle import dump_log

from pyspark_kafkalog.metadata.local.backend import read_snapshot
from pyspark_kafkalog.metadata.messages.metadata_records import ProducerIdsRecord, TransactionalIdRecord
from pyspark_kafkalog.metadata.messages.records import NATIVE_API_KEYS_FROM
from pyspark_kafkalog.root.bootstrap import create_root


def test_kafka_decodes_our_snapshots(tmp_path: Path) -> None:
    store = create_root(tmp_path / "root", clock=Clock(1_700_000_000_000))
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1", "num.partitions": "3"})
    topic_id = add_topic(store, "orders", 3, {"retention.ms": "7"})
    add_topic(store, "many", 1200)
    write_to(store, topic_id, 4)
    store.commit(
        lambda image: [
            ProducerIdsRecord(next_producer_id=1000),
            TransactionalIdRecord(transactional_id="q", version=1, producer_id=0, incarnation="b", fenced=("a",)),
        ],
        operation="x",
    )
    snapshots = snapshot_files(store.root)
    assert len(snapshots) == 5
    result = dump_log(snapshots, "--cluster-metadata-decoder")
    assert result.returncode == 0, result.stderr
    assert "isvalid: false" not in result.stdout
    dumps = re.split(r"^Dumping ", result.stdout, flags=re.MULTILINE)[1:]
    for path, dump in zip(snapshots, dumps, strict=True):
        end_offset = int(path.name.partition("-")[0])
        assert f"Snapshot end offset: {end_offset}, epoch: 0" in dump
        assert len(re.findall(r'SnapshotHeader \{"version":0,"lastContainedLogTimestamp":1700000000000\}', dump)) == 1
        assert dump.count('SnapshotFooter {"version":0}') == 1
        payloads = re.findall(r"^\| offset: (\d+) .*? payload: (.*)$", dump, re.MULTILINE)
        records = list(read_snapshot(path).records)
        for each, (offset, payload) in zip(records, payloads, strict=True):
            api_key = each.schema().api_key
            if api_key >= NATIVE_API_KEYS_FROM:
                assert payload.startswith(f"Error at {offset}, skipping.")
            else:
                assert payload == kafka_text(each)
