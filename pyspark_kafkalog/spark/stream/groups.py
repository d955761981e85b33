"""Commits a streaming query's progress to its consumer group, so that group tools can show its lag.

Progress is written to the group but never read back: a query resumes from its checkpoint. A failed commit is logged and
does not fail the query. Each commit contains the offsets that changed, and from time to time all of them, so that the
offset of an idle partition does not expire.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import KafkalogError, ReadOnlyLogDirError
from pyspark_kafkalog.spark.stream.offsets import StreamOffsets

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root

_LOG: Final = logging.getLogger(__name__)
_ALL_EVERY_S: Final = 3600.0


class GroupProgress:
    """Commits offsets to `group_id`; does nothing if it is None."""

    def __init__(self, group_id: str | None) -> None:
        self._group_id = group_id
        self._reached: StreamOffsets | None = None
        self._committed: StreamOffsets = {}
        self._all_at_s: float | None = None

    def reach(self, offsets: StreamOffsets, root: Root) -> None:
        """Commit that all records before `offsets` are processed; does nothing if they are those of the last call."""
        if self._group_id is None or offsets == self._reached:
            return
        self._reached = offsets  # also after a failure: the next micro-batch retries, not the next poll for records
        now_s = time.monotonic()
        is_all = self._all_at_s is None or now_s - self._all_at_s >= _ALL_EVERY_S
        topics = root.topics()
        changed = {
            each: offset
            for each, offset in offsets.items()
            if each.topic in topics and (is_all or self._committed.get(each) != offset)
        }
        from pyspark_kafkalog.groups.guarded_group import open_group

        try:
            open_group(root, self._group_id).commit(changed)
        except ReadOnlyLogDirError as error:
            _LOG.warning("no offsets are committed to group %s: %s", self._group_id, error)
            self._group_id = None
        except (KafkalogError, OSError) as error:
            _LOG.warning("offsets could not be committed to group %s: %s", self._group_id, error)
        else:
            self._committed = offsets
            self._all_at_s = now_s if is_all else self._all_at_s
