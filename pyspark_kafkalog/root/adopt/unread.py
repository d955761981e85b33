"""The effect of adoption on offsets that readers of the broker's directory cannot read.

Offsets in complete batches above the checkpointed high watermark become part of the log, because there is no other
replica. Offsets in remote storage do not: the adopted log begins at the first local segment. A broker that mounts the
directory later would take that for the log start offset and delete the remote segments below it (RemoteLogManager), so
adoption without them has to be requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from pyspark_kafkalog.errors import KafkalogError, LogDirError
from pyspark_kafkalog.root.broker import ForeignRoot
from pyspark_kafkalog.root.broker_metadata.image import read_topic_configs
from pyspark_kafkalog.root.broker_notices import in_remote_storage
from pyspark_kafkalog.root.descriptions import PartitionDescription
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import plural


def unread_notes(
    root: Path, partitions: Iterable[TopicPartition], *, local_only: bool, clock: Callable[[], int]
) -> tuple[str, ...]:
    """Notes for the user. Raises LogDirError for offsets in remote storage, unless `local_only`."""
    found = _describe(ForeignRoot(root, topic_configs=read_topic_configs, clock=clock), partitions)
    notes = []
    remote = in_remote_storage(found)
    if remote is not None:
        if not local_only:
            raise LogDirError(
                f"{root}: {remote}. Once adopted, each log begins at its first local offset, and a broker that mounts "
                "the directory later deletes the remote segments below that. Read or copy the remote records first, "
                "then adopt without them (--local-only)"
            )
        notes.append(f"{remote}: the logs begin after them")
    above = [each for each in found if each.offsets_above_high_watermark]
    if above:
        total = sum(each.offsets_above_high_watermark for each in above)
        notes.append(
            f"{plural(total, 'offset')} in {plural(len(above), 'partition')}, in whole batches above the high "
            "watermark of the broker's checkpoint, are part of the log: every whole batch counts, as after its recovery"
        )
    return tuple(notes)


def _describe(root: ForeignRoot, partitions: Iterable[TopicPartition]) -> list[PartitionDescription]:
    """The partitions that can be described; damage in the others is reported when their logs are opened."""
    found = []
    for each in partitions:
        try:
            found.append(root.partition(each))
        except (KafkalogError, OSError):
            continue
    return found
