"""The handlers of this package, by API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.admin.alter_configs import handle_alter_configs, handle_incremental_alter_configs
from pyspark_kafkalog.server.admin.cluster import (
    handle_describe_cluster,
    handle_describe_topic_partitions,
    handle_list_config_resources,
)
from pyspark_kafkalog.server.admin.delete_records import handle_delete_records
from pyspark_kafkalog.server.admin.describe_configs import handle_describe_configs
from pyspark_kafkalog.server.admin.log_dirs import handle_alter_replica_log_dirs, handle_describe_log_dirs
from pyspark_kafkalog.server.admin.quorum import handle_describe_quorum, handle_update_features
from pyspark_kafkalog.server.admin.replicas import (
    handle_alter_partition_reassignments,
    handle_elect_leaders,
    handle_list_partition_reassignments,
)
from pyspark_kafkalog.server.admin.topics import (
    handle_create_partitions,
    handle_create_topics,
    handle_delete_topics,
)
from pyspark_kafkalog.server.context import Handler

HANDLERS: Final[Mapping[ApiKey, Handler]] = {
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
