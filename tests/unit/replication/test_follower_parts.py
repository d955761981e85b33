"""The bound of bytes a second, and the metrics and the report of a follower."""

from __future__ import annotations

import json
from pathlib import Path

from builders.following_roots import make_follower
from prometheus_client import CollectorRegistry, generate_latest

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.replication.fetch_loop import RateLimit
from pyspark_kafkalog.replication.report import FollowerCollector, FollowReport
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.security.open import open_root

GAP = Event(
    kind=EventKind.GAP, detail="deleted at the leader", topic="orders", partition=3, first_offset=5, end_offset=9
)


def test_rate_lets_the_bytes_of_one_second_through_and_then_pauses() -> None:
    now_s = [0.0]
    rate = RateLimit(100, lambda: now_s[0])
    assert rate.take(100) == 0
    assert rate.take(50) == 0.5
    now_s[0] = 0.5
    assert rate.take(100) == 1.0
    now_s[0] = 60.0
    assert rate.take(100) == 0
    assert rate.take(1) > 0


def test_rate_without_a_bound_never_pauses() -> None:
    assert RateLimit(None, lambda: 0.0).take(1 << 40) == 0


def test_event_has_its_subject_and_offsets_in_line_and_fields() -> None:
    assert GAP.line() == "gap orders-3 offsets 5 to 9: deleted at the leader"
    assert GAP.fields() == {
        "event": "gap",
        "detail": "deleted at the leader",
        "topic": "orders",
        "partition": 3,
        "first_offset": 5,
        "end_offset": 9,
    }


def test_report_and_metrics_count_events_and_what_was_copied(tmp_path: Path) -> None:
    leader_dir = LogDir.create(tmp_path / "leader")
    leader_dir.create_topic("orders", 1)
    leader_dir.group("readers")
    report = FollowReport(leader="leader", root="copy", clock_ms=lambda: 7000)
    follower = make_follower(RootLeader(open_root(tmp_path / "leader")), tmp_path / "copy", [], is_once=True)
    assert report.tree()["state"] == "waiting for leader"
    report.watch(follower.shared, lambda: follower.cluster_id)
    follower.run()
    report.note(GAP)
    report.write(tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["counts"] == {"gap": 1}
    assert found["events"] == [{"time_ms": 7000, **GAP.fields()}]
    assert [each["leader_high_watermark"] for each in found["partitions"]] == [0]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FollowerCollector(report))
    text = generate_latest(registry).decode()
    for line in (
        'kafka_server_fetcherlagmetrics_consumerlag{partition="0",topic="orders"} 0.0',
        "kafka_server_replicafetchermanager_failedpartitionscount 0.0",
        'kafkalog_follower_events_total{event="gap"} 1.0',
        "kafkalog_follower_last_alarm_timestamp_seconds 7.0",
    ):
        assert line in text
    assert not list(tmp_path.glob("*.part"))
