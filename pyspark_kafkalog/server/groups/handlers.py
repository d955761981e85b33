"""The handler of this package by API."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.context import Handler
from pyspark_kafkalog.server.groups.coordinator import GroupCoordinator
from pyspark_kafkalog.server.groups.describing import DescribingHandlers
from pyspark_kafkalog.server.groups.membership import MembershipHandlers
from pyspark_kafkalog.server.groups.offsets import OffsetHandlers


def handlers(coordinator: GroupCoordinator) -> Mapping[ApiKey, Handler]:
    """The handlers, over one coordinator, which is started before them and stopped after them."""
    membership = MembershipHandlers(coordinator)
    offsets = OffsetHandlers(coordinator)
    describing = DescribingHandlers(coordinator)
    return {
        ApiKey.JOIN_GROUP: membership.join,
        ApiKey.SYNC_GROUP: membership.sync,
        ApiKey.HEARTBEAT: membership.heartbeat,
        ApiKey.LEAVE_GROUP: membership.leave,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: membership.consumer_heartbeat,
        ApiKey.OFFSET_COMMIT: offsets.commit,
        ApiKey.OFFSET_FETCH: offsets.fetch,
        ApiKey.OFFSET_DELETE: offsets.delete,
        ApiKey.LIST_GROUPS: describing.list,
        ApiKey.DESCRIBE_GROUPS: describing.describe,
        ApiKey.CONSUMER_GROUP_DESCRIBE: describing.describe_consumer,
        ApiKey.DELETE_GROUPS: describing.delete,
    }
