"""ApiVersions: the APIs that this server handles, with the version ranges of a Kafka 4.4 broker, and its features.

Clients derive much from this answer: librdkafka turns features on by ranges, kafka-python infers the broker's version,
Java producers use the second version of the transaction protocol if transaction.version 2 is finalized. From version 5
on a client says which cluster and node it means. If it has reached another one, say after a cut-over or behind an
address that has moved, the answer asks it to connect to its bootstrap servers again.

Source of the rules: org.apache.kafka.common.requests.ApiVersionsResponse and ApiVersionsRequest.isValid,
kafka.server.KafkaApis.handleApiVersionsRequest; KIP-511, KIP-584, KIP-1242.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from pyspark_kafkalog.server.context import Handler, Request, ServerContext

#: The levels that are supported, first and last, by feature.
SUPPORTED_FEATURES: Final[Mapping[str, tuple[int, int]]] = {
    "eligible.leader.replicas.version": (0, 0),
    "group.version": (0, 1),
    "kraft.version": (0, 1),
    "metadata.version": (7, 27),
    "transaction.version": (0, 2),
}
#: The levels in use, whatever the root's own metadata log states: they describe this server's protocol.
FINALIZED_FEATURES: Final[Mapping[str, int]] = {
    "group.version": 1,
    "kraft.version": 1,
    "metadata.version": 27,
    "transaction.version": 2,
}
#: The same on all servers over a root, since a Java producer keeps the features of the highest epoch that it has seen.
FEATURES_EPOCH: Final = 1
_FEATURES_WITH_MIN_0: Final = 4
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_HAS_SOFTWARE: Final = 3
_HAS_NODE: Final = 5
_NO_NODE: Final = -1


def api_versions_handler(handled: Collection[int]) -> Handler:
    """The handler that answers with the APIs in `handled`."""
    keys = tuple(
        ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[-1])
        for api in APIS.values()
        if api.key in handled or api.key == ApiKey.API_VERSIONS
    )

    async def handle(context: ServerContext, request: Request[ApiVersionsRequest]) -> ApiVersionsResponse:
        body = request.body
        if request.api_version >= _HAS_SOFTWARE:
            names = (body.client_software_name, body.client_software_version)
            if not all(map(_SOFTWARE.fullmatch, names)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        if request.api_version >= _HAS_NODE and (error := _node_error(context, body)) is not ErrorCode.NONE:
            return ApiVersionsResponse(error_code=error)
        return ApiVersionsResponse(
            api_keys=keys,
            supported_features=tuple(
                SupportedFeatureKey(name=name, min_version=first, max_version=last)
                for name, (first, last) in SUPPORTED_FEATURES.items()
                if first > 0 or request.api_version >= _FEATURES_WITH_MIN_0
            ),
            finalized_features_epoch=FEATURES_EPOCH,
            finalized_features=tuple(
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in FINALIZED_FEATURES.items()
            ),
        )

    return handle


def _node_error(context: ServerContext, body: ApiVersionsRequest) -> ErrorCode:
    """Whether the client means this server; it names both cluster and node, or neither."""
    if (body.cluster_id is None) != (body.node_id == _NO_NODE):
        return ErrorCode.INVALID_REQUEST
    is_meant = body.cluster_id in (None, context.cluster.cluster_id) and body.node_id in (
        _NO_NODE,
        context.cluster.node_id,
    )
    return ErrorCode.NONE if is_meant else ErrorCode.REBOOTSTRAP_REQUIRED


def unsupported_version() -> ApiVersionsResponse:
    """The answer, in version 0, to ApiVersions of a version that does not exist: it names the range that does."""
    versions = APIS[ApiKey.API_VERSIONS].advertised
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=(ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=versions[0], max_version=versions[-1]),),
    )
