"""How large a request of an API may be: the size is checked before the request is read.

    Produce                              socket.request.max.bytes: it holds records
    APIs that list partitions, groups,   16 MiB: a client of a large cluster names all that it knows, and an assignment
    entries or configurations            of a group is in one request
    all others                           64 KiB

A broker takes requests of any API up to socket.request.max.bytes.
"""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.connections.request_bytes import SMALL_REQUEST_BYTES
from pyspark_kafkalog.units import MIB

_LIST_BYTES_MAX: Final = 16 * MIB
#: APIs whose requests name one thing: a group, a member, a producer, a mechanism, or the cluster.
_SMALL: Final = frozenset(
    {
        ApiKey.HEARTBEAT,
        ApiKey.LIST_GROUPS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.API_VERSIONS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.UPDATE_FEATURES,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.LIST_CONFIG_RESOURCES,
    }
)
_MAX: Final = {int(each): SMALL_REQUEST_BYTES if each in _SMALL else _LIST_BYTES_MAX for each in ApiKey}


def request_bytes_max(api_key: int, request_max_bytes: int) -> int:
    """The most bytes that a request of this API has; of an unknown one a small request's, which is refused later."""
    if api_key == ApiKey.PRODUCE:
        return request_max_bytes
    return min(request_max_bytes, _MAX.get(api_key, SMALL_REQUEST_BYTES))
