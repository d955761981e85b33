"""Notices about the offsets of a broker's directory that a reader does not get.

These are offsets above the high watermark, in whole batches that the broker's checkpoint does not cover yet, and
offsets in remote storage, below the first local segment of a tiered topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from pyspark_kafkalog.root.broker_process import BrokerProcess, broker_process
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.units import plural

_OPTION: Final = "the option readToLogEnd (--read-to-log-end)"
_LISTED_MAX: Final = 5


def above_high_watermark(root: Path, partitions: Iterable[PartitionSnapshot]) -> str | None:
    """The number of offsets above the high watermarks, with the reason and advice; None if there are none above."""
    found = [each for each in partitions if each.offsets_above_high_watermark]
    if not found:
        return None
    total = sum(each.offsets_above_high_watermark for each in found)
    listed = _listed(found, lambda each: f"{each.offsets_above_high_watermark:,}")
    return (
        f"{plural(total, 'offset')} in {plural(len(found), 'partition')} of {root} ({listed}) "
        f"lie above the high watermark of its checkpoint and are not read: {reason_and_advice(broker_process(root))}"
    )


def reason_and_advice(process: BrokerProcess) -> str:
    """Why there are whole batches above the checkpointed high watermark, and how to read them."""
    if process is BrokerProcess.RUNNING:
        return (
            "a broker is running there, which writes its checkpoint every 5 seconds. They are read after its next "
            f"checkpoint, or now with {_OPTION}, whether all in-sync replicas have them or not"
        )
    if process is BrokerProcess.STOPPED:
        return (
            "the broker was stopped cleanly before all in-sync replicas had them. Take them from the partition's "
            f"leader, or read them with {_OPTION}"
        )
    return (
        "the broker was not stopped cleanly, so its checkpoint is older than its logs. Read them with "
        f"{_OPTION}, start the broker and stop it cleanly, or adopt the directory (kafkalog adopt)"
    )


def in_remote_storage(partitions: Iterable[PartitionSnapshot]) -> str | None:
    """The offsets in remote storage; None if there are no such offsets."""
    found = [each for each in partitions if each.remote_offsets_count]
    if not found:
        return None
    listed = _listed(found, lambda each: f"{each.log_start_offset} to {each.local_log_start_offset - 1}")
    return (
        f"earlier offsets of {plural(len(found), 'partition')} are in remote storage, not in this directory ({listed})"
    )


def remote_offsets(found: PartitionSnapshot) -> str:
    """The partition's log start offset and its local log start offset."""
    return (
        f"offsets {found.log_start_offset} to {found.local_log_start_offset - 1} of {found.topic}-{found.partition} "
        f"are in remote storage (tiered storage), the first one in this directory is {found.local_log_start_offset}"
    )


def _listed(partitions: Sequence[PartitionSnapshot], what: Callable[[PartitionSnapshot], str]) -> str:
    listed = ", ".join(f"{each.topic}-{each.partition}: {what(each)}" for each in partitions[:_LISTED_MAX])
    more = len(partitions) - _LISTED_MAX
    return f"{listed} and {more:,} more" if more > 0 else listed
