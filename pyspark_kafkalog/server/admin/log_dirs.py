"""DescribeLogDirs: the bytes of records of each partition, by directory, as `kafkalog log-dirs` gives them.

The sizes of a root on a file system are those of the partitions' `.log` files, whose directories are listed; those of a
root on an object store come from the image, without a request. The disk's size and free space are given where there is
one. A partition in remote storage counts with its local segments.

AlterReplicaLogDirs moves replicas between the directories of a broker: here there is nowhere to move them to.

Source of the rules: kafka.server.KafkaApis, ReplicaManager.describeLogDirs and alterReplicaLogDirs; KIP-827.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.metrics import log_sizes
from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.replicas import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.server.context import Request, ServerContext
from pyspark_kafkalog.server.request_errors import error_code_of
from pyspark_kafkalog.storage.names import TopicPartition

_UNKNOWN_BYTES: Final = -1


async def handle_describe_log_dirs(
    context: ServerContext, request: Request[DescribeLogDirsRequest]
) -> DescribeLogDirsResponse:
    body = request.body
    if not context.guard.allows(request.session, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = None
    if body.topics is not None:
        wanted = {TopicPartition(each.topic, number) for each in body.topics for number in each.partitions}
    return DescribeLogDirsResponse(results=await context.run(lambda: _log_dirs(context.root, wanted)))


def log_directories(root: Root) -> list[str]:
    """The directories of the log: absolute paths, as brokers give them, or the URL of the one in an object store."""
    paths = root.directories or (root.path,)
    return [str(each.absolute()) if isinstance(each, Path) else str(each) for each in paths]


def _log_dirs(root: Root, wanted: Collection[TopicPartition] | None) -> tuple[DescribeLogDirsResult, ...]:
    """All directories with the partitions in `wanted`, None for all."""
    directories = log_directories(root)
    found: dict[str, list[tuple[TopicPartition, int]]] = {each: [] for each in directories}
    topics = None if wanted is None else {each.topic for each in wanted}
    try:
        root.refresh()
        for each, size in log_sizes(root, topics):
            if size is not None and (wanted is None or each in wanted):
                found[_log_dir_of(root, each, directories)].append((each, size.size_bytes))
    except (KafkalogError, OSError) as error:
        code = error_code_of(error)
        return tuple(DescribeLogDirsResult(error_code=code, log_dir=each) for each in directories)
    return tuple(_result(directory, sizes) for directory, sizes in found.items())


def _log_dir_of(root: Root, each: TopicPartition, directories: list[str]) -> str:
    """Which of several directories of brokers holds the replica that is read."""
    if len(directories) == 1:
        return directories[0]
    return str(root.partition(each.topic, each.partition).directory.parent.absolute())


def _result(directory: str, sizes: Iterable[tuple[TopicPartition, int]]) -> DescribeLogDirsResult:
    by_topic: dict[str, list[DescribeLogDirsPartition]] = {}
    for each, size_bytes in sizes:
        partition = DescribeLogDirsPartition(partition_index=each.partition, partition_size=size_bytes)
        by_topic.setdefault(each.topic, []).append(partition)
    total_bytes, usable_bytes = _disk(directory)
    return DescribeLogDirsResult(
        log_dir=directory,
        topics=tuple(
            DescribeLogDirsTopic(name=name, partitions=tuple(partitions)) for name, partitions in by_topic.items()
        ),
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )


def _disk(directory: str) -> tuple[int, int]:
    """The size of the file system and its usable part; unknown for an object store."""
    if not Path(directory).is_absolute():
        return _UNKNOWN_BYTES, _UNKNOWN_BYTES
    try:
        found = os.statvfs(directory)
    except OSError:
        return _UNKNOWN_BYTES, _UNKNOWN_BYTES
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


async def handle_alter_replica_log_dirs(
    context: ServerContext, request: Request[AlterReplicaLogDirsRequest]
) -> AlterReplicaLogDirsResponse:
    """A replica that is to stay where it is stays there; any other directory does not exist."""
    body = request.body
    may_alter = context.guard.allows(request.session, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    directories = log_directories(context.root)
    await context.run(context.root.refresh)
    topics = frozenset(context.root.topics())
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for each in body.dirs:
        for topic in each.topics:
            code = ErrorCode.NONE if each.path in directories else ErrorCode.LOG_DIR_NOT_FOUND
            if topic.name not in topics:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not may_alter:
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            results.setdefault(topic.name, []).extend(
                AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code)
                for number in topic.partitions
            )
    return AlterReplicaLogDirsResponse(
        results=tuple(
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=tuple(found)) for name, found in results.items()
        )
    )
