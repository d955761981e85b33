"""Prepares an adopted directory for its broker, and sets aside the topics and partitions that the broker does not know.

    <aside>/        a native log directory (backup.py) with the topics that have stranded partitions; in it, partitions
                    that the broker knows are empty, as they go back in place
    <root>/         checkpoints as of the same commit (export.py); nothing is moved or removed

The broker renames the directories of stranded partitions to `…-stray` when it starts. By then their records are in
`aside`, with closed segments as hard links, which take no room. Once the topics exist on the broker, `export_to` mounts
them from there. A crash leaves the root as it was, and an unfinished copy in `aside`: run the export again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.export.backup import copy_root, only_topics
from pyspark_kafkalog.maintenance.export.broker_differences import BrokerDifferences, TopicChange, find_differences
from pyspark_kafkalog.maintenance.export.export import ExportedPartition, export_in_place, refuse_target
from pyspark_kafkalog.maintenance.export.pinned_logs import pinned_logs
from pyspark_kafkalog.metadata.image import PartitionImage, TopicImage
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR
from pyspark_kafkalog.root.own import OwnRoot
from pyspark_kafkalog.storage.log.log_state import LogState

_LISTED_MAX = 20


@dataclass(frozen=True, slots=True)
class ReturnToBroker:
    """The outcome. `differences` is None if no metadata log of a broker is kept; `aside` if nothing was set aside."""

    exported: Sequence[ExportedPartition]
    differences: BrokerDifferences | None
    aside: Path | None = None


def return_to_broker(
    root: OwnRoot, *, set_aside: Path | None = None, server_properties: Path | None = None
) -> ReturnToBroker:
    """Export `root` in place. Topics that the broker does not know are copied to `set_aside`, which is new or empty.

    Raises LogDirError with the differences if there are some and `set_aside` is None, if `set_aside` or
    `server_properties` is given but no metadata log of a broker is kept, and if `root` was written to meanwhile.
    """
    root.refresh()
    image = root.store.image
    differences = find_differences(root.path, image, server_properties=server_properties)
    if differences is None and (set_aside is not None or server_properties is not None):
        raise LogDirError(f"{root.path / KEPT_METADATA_DIR} is missing: there is no metadata log to compare with")
    if not differences:
        return ReturnToBroker(export_in_place(root, image), differences)
    if set_aside is None:
        raise _refused(root.path, differences)
    if not differences.topics:
        return ReturnToBroker(export_in_place(root, image), differences)
    refuse_target(root, set_aside)
    topics = [_stranded_topic(change) for change in differences.topics]
    with pinned_logs(root, [topic.name for topic in topics]) as logs:
        if logs.image.next_offset != image.next_offset:
            raise LogDirError(f"{root.path} was written to meanwhile: stop all writers and jobs, and run this again")
        copy_root(root, logs, set_aside, only_topics(image, topics), link=True, keep_broker_metadata=False)
    return ReturnToBroker(export_in_place(root, image), differences, set_aside)


def _stranded_topic(change: TopicChange) -> TopicImage:
    stranded = set(change.stranded)
    return replace(
        change.topic,
        partitions=tuple(
            each if each.partition in stranded else PartitionImage(each.partition, LogState())
            for each in change.topic.partitions
        ),
    )


def _refused(root: Path, differences: BrokerDifferences) -> LogDirError:
    listed = list(differences.descriptions())
    more = f"; and {len(listed) - _LISTED_MAX} more" if len(listed) > _LISTED_MAX else ""
    return LogDirError(
        f"the broker does not know what was changed in {root} since it was adopted: "
        f"{'; '.join(listed[:_LISTED_MAX])}{more}. With --set-aside DIR the records that it would not find are put "
        "into DIR, and the commands to run on the broker are printed"
    )
