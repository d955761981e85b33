"""The quota of a client for changes of topics: controller_mutation_rate, partitions created or deleted a second.

A request of a version that knows the error THROTTLING_QUOTA_EXCEEDED gets it for each topic that comes when the quota
is used up; a topic that begins within the quota may exceed it, and the next ones wait until that is made up for. A
request of an earlier version is carried out, and its client is throttled. A topic that could not be changed is not
counted. Quotas are kept in memory alone: a restart forgets what a client has used.

Source of the rules: KIP-599, kafka.server.ControllerMutationQuotaManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark_kafkalog.metadata.access.client_quotas import CONTROLLER_MUTATION_RATE
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.context import AnyRequest, ServerContext
from pyspark_kafkalog.server.request_errors import RequestError

_KNOWS_ERROR_FROM: Final[Mapping[int, int]] = {
    ApiKey.CREATE_TOPICS: 6,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.CREATE_PARTITIONS: 3,
}


class MutationQuota:
    """The quota as one request uses it. Used in the event loop's thread."""

    def __init__(self, context: ServerContext, request: AnyRequest) -> None:
        self._quotas, self._session, self._client_id = context.quotas, request.session, request.client_id
        self._knows_error = request.api_version >= _KNOWS_ERROR_FROM[request.api_key]
        self._taken: dict[str, int] = {}
        #: The throttle_time_ms of the answer.
        self.throttle_ms = 0

    def why_not(self, topic: str, partitions: int) -> RequestError | None:
        """Charge the topic's partitions; why it must wait, if it must."""
        charge = self._quotas.admit if self._knows_error else self._quotas.throttle
        throttle_ms = charge(self._session, self._client_id, CONTROLLER_MUTATION_RATE, partitions)
        self.throttle_ms = max(self.throttle_ms, throttle_ms)
        if throttle_ms and self._knows_error:
            return RequestError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self._taken[topic] = partitions
        return None

    def not_changed(self, topic: str) -> None:
        """Count the topic no longer: its change has failed."""
        partitions = self._taken.pop(topic, 0)
        if partitions:
            self._quotas.give_back(self._session, self._client_id, CONTROLLER_MUTATION_RATE, partitions)
