"""Tables of the handlers of APIs, one for each part of the server; run.py makes the table of a role.

Only the handler of ApiVersions is missing here, since it names all others. The body of a handler's request is the
message of its API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.reads import root_partitions
from pyspark_kafkalog.server.admin.cluster import (
    handle_describe_cluster,
    handle_describe_quorum,
    handle_describe_topic_partitions,
    handle_list_config_resources,
    handle_update_features,
)
from pyspark_kafkalog.server.admin.configs import (
    handle_alter_configs,
    handle_describe_configs,
    handle_incremental_alter_configs,
)
from pyspark_kafkalog.server.admin.replicas import (
    handle_alter_partition_reassignments,
    handle_alter_replica_log_dirs,
    handle_describe_log_dirs,
    handle_elect_leaders,
    handle_list_partition_reassignments,
)
from pyspark_kafkalog.server.admin.topics import (
    handle_create_partitions,
    handle_create_topics,
    handle_delete_records,
    handle_delete_topics,
)
from pyspark_kafkalog.server.context import Handler
from pyspark_kafkalog.server.groups import describing as groups
from pyspark_kafkalog.server.groups.coordinator import GroupCoordinator
from pyspark_kafkalog.server.groups.membership import MembershipHandlers
from pyspark_kafkalog.server.groups.offsets import OffsetHandlers, TransactionalCommits
from pyspark_kafkalog.server.metadata import handle_find_coordinator, handle_metadata
from pyspark_kafkalog.server.produce import Produces, refuse_produce, refuse_producer_id
from pyspark_kafkalog.server.reads.fetch import Fetches
from pyspark_kafkalog.server.reads.fetch_sessions import FetchSessions
from pyspark_kafkalog.server.reads.log_slices import LogSlices
from pyspark_kafkalog.server.reads.offsets import EpochEnds, OffsetLists
from pyspark_kafkalog.server.security.acls import AclGuard, AclHandlers
from pyspark_kafkalog.server.security.quotas import handle_alter_client_quotas, handle_describe_client_quotas
from pyspark_kafkalog.server.security.sasl import SaslAuthenticator, SaslHandlers
from pyspark_kafkalog.server.security.scram import handle_alter_credentials, handle_describe_credentials
from pyspark_kafkalog.server.transactions import describing as transactions
from pyspark_kafkalog.server.transactions import offsets as transactional_offsets
from pyspark_kafkalog.server.transactions.coordinator import TransactionCoordinator
from pyspark_kafkalog.server.transactions.producing import ProducerHandlers
from pyspark_kafkalog.server.transactions.units import TransactionAdmission

Handlers: TypeAlias = Mapping[ApiKey, Handler]

METADATA_HANDLERS: Final[Handlers] = {
    ApiKey.METADATA: handle_metadata,
    ApiKey.FIND_COORDINATOR: handle_find_coordinator,
}

ADMIN_HANDLERS: Final[Handlers] = {
    ApiKey.CREATE_TOPICS: handle_create_topics,
    ApiKey.DELETE_TOPICS: handle_delete_topics,
    ApiKey.CREATE_PARTITIONS: handle_create_partitions,
    ApiKey.DELETE_RECORDS: handle_delete_records,
    ApiKey.DESCRIBE_CONFIGS: handle_describe_configs,
    ApiKey.ALTER_CONFIGS: handle_alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: handle_incremental_alter_configs,
    ApiKey.LIST_CONFIG_RESOURCES: handle_list_config_resources,
    ApiKey.DESCRIBE_LOG_DIRS: handle_describe_log_dirs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: handle_alter_replica_log_dirs,
    ApiKey.DESCRIBE_CLUSTER: handle_describe_cluster,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: handle_describe_topic_partitions,
    ApiKey.DESCRIBE_QUORUM: handle_describe_quorum,
    ApiKey.UPDATE_FEATURES: handle_update_features,
    ApiKey.ELECT_LEADERS: handle_elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: handle_alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: handle_list_partition_reassignments,
}

#: Of a server that only reads.
READ_ONLY_HANDLERS: Final[Handlers] = {ApiKey.PRODUCE: refuse_produce}
#: Of a server over a broker's directory, which has no coordinator of transactions.
NO_PRODUCER_IDS: Final[Handlers] = {ApiKey.INIT_PRODUCER_ID: refuse_producer_id}


def produce_handlers(admission: TransactionAdmission) -> Handlers:
    """Produce; see `Produces`."""
    return {ApiKey.PRODUCE: Produces(admission).handle}


def read_handlers(root: Root, sessions: FetchSessions) -> Handlers:
    """The handlers of consumers, which share open segments and the positions of consumers.

    `sessions` are those of the server, whatever role it has.
    """
    partitions = root_partitions(root)
    return {
        ApiKey.FETCH: Fetches(partitions, LogSlices(), sessions).handle,
        ApiKey.LIST_OFFSETS: OffsetLists(partitions).handle,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: EpochEnds(partitions).handle,
    }


def group_handlers(coordinator: GroupCoordinator) -> Handlers:
    """The handlers of groups over one coordinator, which starts before them and stops after them."""
    membership = MembershipHandlers(coordinator)
    offsets = OffsetHandlers(coordinator)
    describing = groups.DescribingHandlers(coordinator)
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


def transaction_handlers(coordinator: TransactionCoordinator, members: TransactionalCommits) -> Handlers:
    """The handlers of transactions. `members` checks the group's member that commits offsets in a transaction."""
    producers = ProducerHandlers(coordinator)
    offsets = transactional_offsets.OffsetHandlers(coordinator, members)
    describing = transactions.DescribingHandlers(coordinator)
    return {
        ApiKey.INIT_PRODUCER_ID: producers.init_producer_id,
        ApiKey.ADD_PARTITIONS_TO_TXN: producers.add_partitions,
        ApiKey.ADD_OFFSETS_TO_TXN: producers.add_offsets,
        ApiKey.END_TXN: producers.end,
        ApiKey.WRITE_TXN_MARKERS: describing.write_markers,
        ApiKey.TXN_OFFSET_COMMIT: offsets.commit,
        ApiKey.DESCRIBE_PRODUCERS: describing.describe_producers,
        ApiKey.DESCRIBE_TRANSACTIONS: describing.describe_transactions,
        ApiKey.LIST_TRANSACTIONS: describing.list_transactions,
    }


def security_handlers(guard: AclGuard, sasl: SaslAuthenticator | None) -> Handlers:
    """The handlers of a listener that authenticates by `sasl`; None: by TLS or not at all."""
    by_sasl = SaslHandlers(sasl)
    acls = AclHandlers(guard)
    return {
        ApiKey.SASL_HANDSHAKE: by_sasl.handshake,
        ApiKey.SASL_AUTHENTICATE: by_sasl.authenticate,
        ApiKey.DESCRIBE_ACLS: acls.describe,
        ApiKey.CREATE_ACLS: acls.create,
        ApiKey.DELETE_ACLS: acls.delete,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: handle_describe_credentials,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: handle_alter_credentials,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: handle_describe_client_quotas,
        ApiKey.ALTER_CLIENT_QUOTAS: handle_alter_client_quotas,
    }
