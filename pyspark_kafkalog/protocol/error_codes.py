"""The error codes of Kafka's protocol, as of Kafka 4.4: org.apache.kafka.common.protocol.Errors.

Numbers and names are Kafka's, and so is which errors a client may answer by sending the request again. The texts say
the same as Kafka's, for logs and for responses that carry a text.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

_RETRIABLE: Final = True


class ErrorCode(IntEnum):
    """A code, with its `message` and whether clients try again: `retriable`."""

    message: str
    retriable: bool

    def __new__(cls, code: int, message: str, retriable: bool = False) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        member.retriable = retriable
        return member

    UNKNOWN_SERVER_ERROR = -1, "The server met an error that it did not expect."
    NONE = 0, "No error."
    OFFSET_OUT_OF_RANGE = 1, "The offset is below the start of the log or above its end."
    CORRUPT_MESSAGE = 2, "The batch's checksum, size or layout is wrong, or a compacted topic got no key.", _RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, "The server does not have this topic or partition.", _RETRIABLE
    INVALID_FETCH_SIZE = 4, "The size to fetch is invalid."
    LEADER_NOT_AVAILABLE = 5, "The partition has no leader at the moment.", _RETRIABLE
    NOT_LEADER_OR_FOLLOWER = 6, "This server is neither leader nor replica of the partition.", _RETRIABLE
    REQUEST_TIMED_OUT = 7, "The request took longer than its timeout.", _RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, "The replica of the partition is not available.", _RETRIABLE
    MESSAGE_TOO_LARGE = 10, "A batch is larger than the server accepts."
    STALE_CONTROLLER_EPOCH = 11, "The controller has moved to another broker."
    OFFSET_METADATA_TOO_LARGE = 12, "The metadata of a committed offset is too large."
    NETWORK_EXCEPTION = 13, "The connection ended before the response came.", _RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "The coordinator still loads its state.", _RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "The coordinator is not available.", _RETRIABLE
    NOT_COORDINATOR = 16, "This server is not the coordinator.", _RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "The topic's name is invalid, or the topic does not allow the operation."
    RECORD_LIST_TOO_LARGE = 18, "A batch is larger than a segment of the topic may be."
    NOT_ENOUGH_REPLICAS = 19, "Fewer replicas are in sync than required: nothing was written.", _RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "The batch was written, but to fewer replicas than required.", _RETRIABLE
    INVALID_REQUIRED_ACKS = 21, "The value of acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, "The generation is not the group's."
    INCONSISTENT_GROUP_PROTOCOL = 23, "The member has no protocol in common with the group, or none at all."
    INVALID_GROUP_ID = 24, "The group id is invalid."
    UNKNOWN_MEMBER_ID = 25, "The coordinator does not know this member."
    INVALID_SESSION_TIMEOUT = 26, "The session timeout is outside of the range that the server allows."
    REBALANCE_IN_PROGRESS = 27, "The group is rebalancing: the member must join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, "The committed offsets are too large."
    TOPIC_AUTHORIZATION_FAILED = 29, "Not authorized for the topic."
    GROUP_AUTHORIZATION_FAILED = 30, "Not authorized for the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, "Not authorized for the cluster."
    INVALID_TIMESTAMP = 32, "The record's timestamp is outside of the range that the topic allows."
    UNSUPPORTED_SASL_MECHANISM = 33, "The server does not have this SASL mechanism enabled."
    ILLEGAL_SASL_STATE = 34, "The request is out of place in the SASL exchange."
    UNSUPPORTED_VERSION = 35, "The server does not support this version of the API."
    TOPIC_ALREADY_EXISTS = 36, "A topic of this name exists."
    INVALID_PARTITIONS = 37, "The number of partitions is invalid."
    INVALID_REPLICATION_FACTOR = 38, "The replication factor is below 1 or above the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, "The assignment of replicas is invalid."
    INVALID_CONFIG = 40, "The configuration is invalid."
    NOT_CONTROLLER = 41, "This server is not the controller.", _RETRIABLE
    INVALID_REQUEST = 42, "The request is malformed, or not meant for this server."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "The message format of the log does not support the request."
    POLICY_VIOLATION = 44, "A policy of the server refuses the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "The batch's sequence number does not follow the producer's last one."
    DUPLICATE_SEQUENCE_NUMBER = 46, "The batch's sequence number was written before."
    INVALID_PRODUCER_EPOCH = 47, "The producer's epoch is older than the current one."
    INVALID_TXN_STATE = 48, "The transaction's state does not allow the operation."
    INVALID_PRODUCER_ID_MAPPING = 49, "The producer id is not the one of the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, "The transaction timeout is above the maximum that the server allows."
    CONCURRENT_TRANSACTIONS = 51, "Another operation on the same transaction is going on.", _RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52, "The coordinator that sent the marker is not the current one."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "Not authorized for the transactional id."
    SECURITY_DISABLED = 54, "The server has no authorizer."
    OPERATION_NOT_ATTEMPTED = 55, "Another operation of the same request failed, so this one was not tried."
    KAFKA_STORAGE_ERROR = 56, "A file of the log could not be read or written.", _RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "The server has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, "SASL authentication failed."
    UNKNOWN_PRODUCER_ID = 59, "The partition has no state of the producer; its records may have been deleted."
    REASSIGNMENT_IN_PROGRESS = 60, "The partition is being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, "The delegation token does not exist."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "The principal neither owns nor renews the delegation token."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "Connections of this kind may not ask for delegation tokens."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "Not authorized for the delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, "The type of the principal is not supported."
    NON_EMPTY_GROUP = 68, "The group has members."
    GROUP_ID_NOT_FOUND = 69, "The group does not exist."
    FETCH_SESSION_ID_NOT_FOUND = 70, "The fetch session does not exist.", _RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "The epoch of the fetch session is invalid.", _RETRIABLE
    LISTENER_NOT_FOUND = 72, "The leader has no listener that matches the one of this request.", _RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "Topics may not be deleted."
    FENCED_LEADER_EPOCH = 74, "The leader epoch of the request is older than the partition's.", _RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, "The leader epoch of the request is newer than the partition's.", _RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, "The version of the request does not allow this compression."
    STALE_BROKER_EPOCH = 77, "The broker's epoch has changed."
    OFFSET_NOT_AVAILABLE = 78, "The leader does not know its high watermark since its election.", _RETRIABLE
    MEMBER_ID_REQUIRED = 79, "The member must join again with the member id of this response."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "The preferred leader is not available.", _RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "The group has as many members as it may have."
    FENCED_INSTANCE_ID = 82, "Another member uses the same group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "No replica that may become the leader is available.", _RETRIABLE
    ELECTION_NOT_NEEDED = 84, "The partition needs no election of a leader.", _RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "The group is subscribed to the topic, whose offsets may therefore not be deleted."
    INVALID_RECORD = 87, "A record of the batch is not valid for the topic."
    UNSTABLE_OFFSET_COMMIT = 88, "Offsets are pending in a transaction that has not ended.", _RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "A quota is exceeded.", _RETRIABLE
    PRODUCER_FENCED = 90, "A newer producer uses the same transactional id."
    RESOURCE_NOT_FOUND = 91, "The resource does not exist."
    DUPLICATE_RESOURCE = 92, "The request names a resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, "The sender or the receiver is not among the voters."
    INVALID_UPDATE_VERSION = 95, "The version of the update is invalid."
    FEATURE_UPDATE_FAILED = 96, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "The principal of a forwarded request could not be read."
    SNAPSHOT_NOT_FOUND = 98, "The snapshot does not exist."
    POSITION_OUT_OF_RANGE = 99, "The position is outside of the snapshot."
    UNKNOWN_TOPIC_ID = 100, "The server does not have a topic of this id.", _RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "The broker id is in use."
    BROKER_ID_NOT_REGISTERED = 102, "The broker id is not registered."
    INCONSISTENT_TOPIC_ID = 103, "The topic id of the request is not the log's.", _RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104, "The cluster id of the request is not the server's."
    TRANSACTIONAL_ID_NOT_FOUND = 105, "The transactional id does not exist."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "The fetch session mixes requests with and without topic ids.", _RETRIABLE
    INELIGIBLE_REPLICA = 107, "The new set of in-sync replicas has one that may not be in it."
    NEW_LEADER_ELECTED = 108, "The partition was changed, and its leader with it."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "The offset lies in tiered storage."
    FENCED_MEMBER_EPOCH = 110, "The member epoch is fenced: the member must give up its partitions and join again."
    UNRELEASED_INSTANCE_ID = 111, "Another member of the group still uses the instance id."
    UNSUPPORTED_ASSIGNOR = 112, "The group does not support the assignor."
    STALE_MEMBER_EPOCH = 113, "The member epoch is old: the next heartbeat brings the current one."
    MISMATCHED_ENDPOINT_TYPE = 114, "The request went to an endpoint of the wrong type."
    UNSUPPORTED_ENDPOINT_TYPE = 115, "This type of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, "The controller id is unknown."
    UNKNOWN_SUBSCRIPTION_ID = 117, "The telemetry has an unknown or old subscription id."
    TELEMETRY_TOO_LARGE = 118, "The telemetry is larger than the server accepts."
    INVALID_REGISTRATION = 119, "The registration of the broker is invalid."
    TRANSACTION_ABORTABLE = 120, "The transaction failed; after aborting it the producer may continue."
    INVALID_RECORD_STATE = 121, "The state of the record does not allow this acknowledgement."
    SHARE_SESSION_NOT_FOUND = 122, "The share session does not exist.", _RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "The epoch of the share session is invalid.", _RETRIABLE
    FENCED_STATE_EPOCH = 124, "The epoch is not the one of the share group's state."
    INVALID_VOTER_KEY = 125, "The key of the voter is not the replica's."
    DUPLICATE_VOTER = 126, "The voter is in the set of voters already."
    VOTER_NOT_FOUND = 127, "The voter is not in the set of voters."
    INVALID_REGULAR_EXPRESSION = 128, "The regular expression is invalid."
    REBOOTSTRAP_REQUIRED = 129, "The client's metadata is old: it must connect to its bootstrap servers again."
    STREAMS_INVALID_TOPOLOGY = 130, "The topology is invalid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "The epoch of the topology is invalid."
    STREAMS_TOPOLOGY_FENCED = 132, "The epoch of the topology is old."
    SHARE_SESSION_LIMIT_REACHED = 133, "No more share sessions are allowed.", _RETRIABLE
    GROUP_DELETION_FAILED = 134, "The group was not deleted: its own error message says why."
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, "The description of the topology was not updated."
    CONTROLLER_ID_NOT_REGISTERED = 136, "No controller with this id is registered."
