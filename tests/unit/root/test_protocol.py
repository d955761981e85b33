"""What native roots and brokers' directories answer to the same questions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.root.protocol import Root


@pytest.fixture(params=["native", "broker"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    if request.param == "native":
        log_dir = LogDir.create(tmp_path / "root")
        log_dir.create_topic("cars", 1)
        log_dir.create_topic("compacted", 1, {"cleanup.policy": "compact"})
        return log_dir.root
    shutil.copytree(FIXTURES / "cars", tmp_path / "root")
    return LogDir.open(tmp_path / "root").root


def test_high_watermark_is_that_of_the_partition(root: Root) -> None:
    for topic in root.topics():
        for number in root.partition_numbers(topic):
            assert root.high_watermark(topic, number) == root.partition(topic, number).high_watermark


def test_high_watermark_of_missing_partition_is_refused(root: Root) -> None:
    for topic, number in (("missing", 0), (root.topics()[0], 1000), (root.topics()[0], -1)):
        with pytest.raises(UnknownTopicError):
            root.high_watermark(topic, number)


def test_compacted_topics_are_those_whose_policy_says_so(root: Root) -> None:
    for topic in root.topics():
        assert root.is_compacted(topic) == ("compact" in root.topic(topic).configs.get("cleanup.policy", ""))


def test_brokers_directory_has_coordinator_and_no_settings(root: Root) -> None:
    assert root.has_broker_coordinator == root.is_broker_directory
    assert root.has_broker_configs != root.is_broker_directory
