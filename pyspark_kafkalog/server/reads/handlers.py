"""The handlers of this area by API."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.context import Handler
from pyspark_kafkalog.server.reads.fetch import Fetches
from pyspark_kafkalog.server.reads.fetch_sessions import FetchSessions
from pyspark_kafkalog.server.reads.leader_epochs import EpochEnds
from pyspark_kafkalog.server.reads.list_offsets import OffsetLists
from pyspark_kafkalog.server.reads.log_slices import LogSlices
from pyspark_kafkalog.server.reads.partitions import Partitions


def handlers(sessions: FetchSessions) -> Mapping[ApiKey, Handler]:
    """The handlers of one server, which share what they keep of its root: open segments, positions of consumers.

    `sessions` are those of the server, whatever role it has.
    """
    partitions = Partitions()
    return {
        ApiKey.FETCH: Fetches(partitions, LogSlices(), sessions).handle,
        ApiKey.LIST_OFFSETS: OffsetLists(partitions).handle,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: EpochEnds(partitions).handle,
    }
