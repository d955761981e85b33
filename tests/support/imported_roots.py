"""Object roots with the segments of file roots, which need not be made by a merge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from root_places import memory_root

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, SegmentObjectsRecord
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from pyspark_kafkalog.storage.artefacts.leader_epochs import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.own_segments import put_segment
from pyspark_kafkalog.tiered.segments import TopicIdPartition


def imported(source: LogDir, topic: str, *, clock: Callable[[], int]) -> LogDir:
    """An object root with the segments of a partition of a file root as they are, those that were cleaned marked."""
    log_dir = LogDir.create(memory_root(), clock=clock)
    described = source.topic(topic)
    log_dir.create_topic(topic, partitions=1, configs=dict(described.configs))
    root, directory = log_dir.root.native(), Path(source.path) / f"{topic}-0"
    assert isinstance(root, ObjectRoot)
    state = source.root.native().store.image.partition(topic, 0).state
    checkpoint = read_offset_checkpoint(Path(source.path) / CLEANER_OFFSET_CHECKPOINT)
    clean_below = checkpoint.get(TopicPartition(topic, 0), 0)
    of = TopicIdPartition(topic, root.store.image.topic(topic).topic_id, 0)
    epochs = LeaderEpochCheckpoint.open(directory / "leader-epoch-checkpoint").entries
    bases = list_base_offsets(directory)
    bases = [each for each in bases if each < state.log_end_offset]
    put = [
        put_segment(
            root.objects,
            of,
            directory,
            base,
            end,
            epochs=epochs,
            segment_id=new_segment_id(root.store.image.next_offset),
            now_ms=clock(),
            is_cleaned=end <= clean_below,
        )
        for base, end in zip(bases, [*bases[1:], state.log_end_offset], strict=True)
    ]

    def build(image: MetadataImage) -> list[MetadataRecord]:
        record = SegmentObjectsRecord(topic_id=of.topic_id, planned_at=image.next_offset, segments=tuple(put))
        return [partition_state_record(of.topic_id, 0, state), record]

    root.store.commit(build, operation="import")
    return log_dir
