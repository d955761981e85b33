"""For following a leader: appends the batches of a fetch as the leader has stored them.

Offsets, leader epochs, timestamps and codecs are kept, and control batches are included. All batches of one fetch go to
one segment. A crash leaves at worst a torn batch at the end.

Source of the rules: UnifiedLog.appendAsFollower of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches, verify_crcs
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog

#: The name in errors for batches that are not in a file yet.
FETCH_RESPONSE: Final = "<fetch response>"


def append_as_follower(log: UnifiedLog, data: Buffer) -> None:
    """Store the batches in `data` with their offsets and epochs, all in one segment.

    Raises CorruptRecordError for damage or offsets that do not increase. Raises InvalidRecordError for an offset below
    the log end, and for more bytes or offsets than one segment can hold.
    """
    batches = _checked_batches(data, next_offset=log.log_end_offset, config=log.config)
    if not len(batches):
        return
    first_offset = int(batches["base_offset"][0])
    for epoch, base_offset in zip(batches["leader_epoch"].tolist(), batches["base_offset"].tolist(), strict=True):
        log.assign_epoch(epoch, base_offset)
    plan = log.active_segment.plan_whole(batches, now_ms=log.clock())
    if plan is None:
        log.roll(first_offset)
        plan = log.active_segment.plan_whole(batches, now_ms=log.clock())
    if plan is None:
        raise InvalidRecordError(f"one append spans more offsets than a segment: {first_offset} and 2^31 above")
    log.append(as_bytes_array(data), batches, plan)


def _checked_batches(data: Buffer, *, next_offset: int, config: LogConfig) -> NDArray[np.void]:
    """The table of the batches in `data`, with positions in it."""
    scan = scan_batches(data, file=FETCH_RESPONSE)
    if scan.fault is not None:
        raise scan.fault
    size_bytes = len(as_bytes_array(data))
    if scan.consumed_bytes != size_bytes:
        raise CorruptRecordError(
            file=FETCH_RESPONSE,
            position=scan.consumed_bytes,
            expected="whole batches",
            found=f"{size_bytes - scan.consumed_bytes} bytes of one",
        )
    verify_crcs(data, scan.batches, data_position=0, file=FETCH_RESPONSE)
    if size_bytes > config.segment_bytes:
        raise InvalidRecordError(f"batches of {size_bytes} bytes are over segment.bytes={config.segment_bytes}")
    if len(scan.batches) and int(scan.batches["base_offset"][0]) < next_offset:
        raise InvalidRecordError(
            f"offset {int(scan.batches['base_offset'][0])} to append is below the log end {next_offset}"
        )
    return scan.batches
