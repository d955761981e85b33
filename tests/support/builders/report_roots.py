"""Facts and log directories that the tests of the report share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from fakes.clock import Clock

from builders.controlled import create_log_dir
from builders.root_places import RootPlace
from pyspark_kafkalog import LogDir
from pyspark_kafkalog.report.facts import (
    Advice,
    CommitFacts,
    GroupLag,
    HeavyKey,
    KeySample,
    PartitionFacts,
    RootFacts,
    SegmentRun,
    Series,
    TopicFacts,
    WriteHistory,
)
from pyspark_kafkalog.storage.names import TopicPartition

NOW_MS = 1_790_000_000_000
HOUR_MS = 3_600_000
HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=2'>\"'`&amp;<!--\u2028\u202e"


def records(count: int, *, start_ms: int, end_ms: int, keys: int = 20, value_bytes: int = 100) -> pa.Table:
    """Records with times from start to end; key 0 has half of them."""
    at = np.arange(count)
    numbers = np.where(at % 2 == 0, 0, at % keys)
    times = np.linspace(start_ms, end_ms, count).astype(np.int64)
    return pa.table(
        {
            "key": [f"key-{number}".encode() for number in numbers.tolist()],
            "value": [bytes([number % 251]) * value_bytes for number in at.tolist()],
            "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
        }
    )


def lively_root(path: RootPlace) -> LogDir:
    """A root of ours in which every section of the report has something to tell."""
    clock = Clock(NOW_MS - 48 * HOUR_MS)
    log_dir = create_log_dir(path, clock=clock)
    small = {"internal.segment.bytes": "20000"}
    log_dir.create_topic("orders", partitions=4, configs={**small, "retention.ms": str(24 * HOUR_MS)})
    log_dir.create_topic("customers", partitions=2, configs={**small, "cleanup.policy": "compact"})
    log_dir.create_topic("idle", partitions=30)
    for hour in range(0, 48, 4):
        start_ms = clock.now_ms
        clock.now_ms += 4 * HOUR_MS
        for topic in ("orders", "customers"):
            log_dir.append(topic, records(400, start_ms=start_ms, end_ms=clock.now_ms), flush="os")
        log_dir.append(
            "orders",
            records(10, start_ms=start_ms, end_ms=clock.now_ms),
            partition=1,
            transactional_id="nightly",
            transaction_version=hour,
            flush="os",
        )
    log_dir.group("billing").commit({("orders", 0): 5, ("orders", 1): 50})
    return log_dir


def many_partitions(topics: int, partitions: int, runs: int = 4) -> RootFacts:
    """Facts of `topics` topics with `partitions` partitions of `runs` segments each."""

    def partition(topic: str, number: int) -> PartitionFacts:
        end = 1000 * (number + 1)
        segments = tuple(
            SegmentRun(end * at // runs, 1, 1 << 20, NOW_MS - (runs - at) * HOUR_MS, NOW_MS - (runs - at - 1) * HOUR_MS)
            for at in range(runs)
        )
        return PartitionFacts(
            topic_partition=TopicPartition(topic, number), high_watermark=end, last_stable_offset=end, runs=segments
        )

    def topic(number: int) -> TopicFacts:
        name = f"events.{number:04d}"
        there = tuple(partition(name, each) for each in range(partitions))
        return TopicFacts(
            name=name, topic_id=None, configs={}, cleanup_policy=("delete",), segment_bytes=1 << 30, partitions=there
        )

    return RootFacts(
        path=Path("/data/log"),
        is_foreign=False,
        cluster_id="cluster",
        node_id=1,
        now_ms=NOW_MS,
        topics=tuple(topic(number) for number in range(topics)),
    )


def hostile_facts() -> RootFacts:
    """Facts in which every text is HOSTILE."""
    root = many_partitions(1, 2)
    topic_partition = TopicPartition(HOSTILE, 0)
    broken = PartitionFacts(topic_partition=topic_partition, error=HOSTILE)
    topic = replace(
        root.topics[0],
        name=HOSTILE,
        topic_id=HOSTILE,
        configs={HOSTILE: HOSTILE},
        cleanup_policy=(HOSTILE,),
        partitions=(broken, replace(root.topics[0].partitions[1], topic_partition=TopicPartition(HOSTILE, 1))),
    )
    commit = CommitFacts(
        offset=1,
        timestamp_ms=NOW_MS,
        operation=HOSTILE,
        topics=(HOSTILE,),
        records=1,
        bytes=1,
        transactional_id=HOSTILE,
        version=1,
    )
    key = HeavyKey(HOSTILE.encode(), 200, 200)
    return replace(
        root,
        path=Path("/data") / HOSTILE,
        cluster_id=HOSTILE,
        following=HOSTILE,
        topics=(topic,),
        history=WriteHistory(
            commits_read=1,
            is_whole=True,
            series=Series(
                start_ms=NOW_MS,
                bucket_ms=1000,
                buckets=1,
                commits=(1,),
                topics=(HOSTILE,),
                records=((1,),),
                bytes=((1,),),
            ),
            newest=(commit,),
            maintenance=(commit,),
        ),
        groups=(GroupLag(HOSTILE, topic_partition, 1, 0, 5, 4, NOW_MS),),
        runs=({HOSTILE: HOSTILE, "timestamp": HOSTILE, "run_id": HOSTILE, "action": HOSTILE, "bytes_dropped": 1},),
        keys=(
            KeySample(
                topic=HOSTILE,
                partitions=1,
                records=200,
                bytes=200,
                distinct_keys=2,
                error_records=0,
                by_records=(key,),
                by_bytes=(key,),
            ),
        ),
        findings=(Advice("problem", HOSTILE, HOSTILE, HOSTILE),),
        notes=(HOSTILE,),
    )
