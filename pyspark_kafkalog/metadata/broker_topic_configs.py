"""Topic configurations out of a Kafka broker's own metadata log, where its directory holds one (a combined node).

    __cluster_metadata-0/<20 digit end offset>-<10 digit epoch>.checkpoint   snapshots, the newest counts
    __cluster_metadata-0/<base offset>.log                                   what came after

Read as far as it is whole; records of later versions and types are passed over, as is everything but topics and their
configurations. A broker that is no controller has no such log, and its topics' configurations cannot be told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.metadata.bootstrap import METADATA_DIR
from pyspark_kafkalog.metadata.image import TOPIC_RESOURCE
from pyspark_kafkalog.metadata.records import MetadataRecord, decode_record
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, parse_header
from pyspark_kafkalog.record.plain import Record, decode_batch
from pyspark_kafkalog.storage.listing import list_base_offsets
from pyspark_kafkalog.storage.names import LOG_SUFFIX, segment_file

_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_SNAPSHOT_BYTES_MAX: Final = 256 << 20


def read_topic_configs(root: Path) -> Mapping[str, Mapping[str, str]]:
    """Configuration overrides by topic name; empty where `root` has no metadata log."""
    directory = root / METADATA_DIR
    if not directory.is_dir():
        return {}
    configs: dict[str, dict[str, str]] = {}
    names: dict[str, str] = {}
    for metadata_record in _records(directory):
        _apply(metadata_record, configs, names)
    return configs


def _apply(metadata_record: MetadataRecord, configs: dict[str, dict[str, str]], names: dict[str, str]) -> None:
    fields = metadata_record.fields
    if metadata_record.type == "TopicRecord":
        names[fields["topicId"]] = fields["name"]
        configs.setdefault(fields["name"], {})
    elif metadata_record.type == "RemoveTopicRecord":
        configs.pop(names.pop(fields["topicId"], ""), None)
    elif metadata_record.type == "ConfigRecord" and fields["resourceType"] == TOPIC_RESOURCE:
        of_topic = configs.setdefault(fields["resourceName"], {})
        if fields["value"] is None:
            of_topic.pop(fields["name"], None)
        else:
            of_topic[fields["name"]] = fields["value"]


def _records(directory: Path) -> Iterator[MetadataRecord]:
    end_offset, snapshot = _newest_snapshot(directory)
    if snapshot is not None:
        for each in _values(snapshot, 0):
            yield from _decoded(each, snapshot)
    for base_offset in list_base_offsets(directory):
        path = segment_file(directory, base_offset, LOG_SUFFIX)
        for each in _values(path, end_offset):
            yield from _decoded(each, path)


def _newest_snapshot(directory: Path) -> tuple[int, Path | None]:
    found = [
        (int(match[1]), int(match[2]), directory / match[0])
        for match in map(_SNAPSHOT.fullmatch, os.listdir(directory))
        if match is not None
    ]
    if not found:
        return 0, None
    end_offset, _, path = max(found)
    return end_offset, path


def _values(path: Path, start_offset: int) -> Iterator[Record]:
    """Records from `start_offset` on of a file of batches, up to its first damaged batch."""
    with path.open("rb") as file:
        data = file.read(_SNAPSHOT_BYTES_MAX)
    at = 0
    try:
        while at + RECORD_BATCH_OVERHEAD_BYTES <= len(data):
            header = parse_header(data, at, file=str(path), file_position=at)
            if at + header.size_bytes > len(data):
                return
            if header.last_offset >= start_offset and not header.is_control:
                batch = decode_batch(data, at, file=str(path), file_position=at)
                yield from (each for each in batch.records if each.offset >= start_offset)
            at += header.size_bytes
    except DiskFormatError:
        return


def _decoded(each: Record, path: Path) -> Iterator[MetadataRecord]:
    if each.value is None:
        return
    try:
        yield decode_record(each.value, file=str(path))
    except DiskFormatError:
        return
