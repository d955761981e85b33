"""`kafkalog topics`: create, list, describe, alter and delete the topics of a log directory.

Options and output are those of kafka-topics, with --path in place of --bootstrap-server. A log directory has one
replica of each partition, so its leader, replicas and in-sync replicas are the node of meta.properties. The topics of a
broker's directory can be listed and described. Errors are printed in one line, with exit code 1.

Of several directories of brokers the leader is the node whose replica is read. Isr has the nodes whose replicas have
all of its records below the high watermark. A line follows for each other replica: how far it is behind, from which
offset on it has other records, or that it is of a deleted topic of that name.

Of a copy of a cluster's metadata log (kafkalog follow --metadata-path) the topics are those of the cluster, with their
leaders and replicas as of the end of the copy.

Of a log directory that follows a leader, standard error says which one, since when, and as of when.

--topic takes a name or, as in kafka-topics, a regular expression (a comma means "or") to list, describe, alter or
delete all topics that match it; if a topic has exactly that name, only that topic is selected. --alter and --delete
change all selected topics in one commit, or none if one of them cannot be changed so.

examples:
  kafkalog topics --path /data/log --create --topic orders --partitions 4 --config retention.ms=-1
  kafkalog topics --path /data/log --list --exclude-internal
  kafkalog topics --path /data/log --describe --topic 'orders.*' --output json
  kafkalog topics --path /data/log --alter --topic orders --partitions 8
  kafkalog topics --path /data/log --delete --topic orders
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.config.entries import topic_entries
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.errors import KafkalogError, TopicExistsError, UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.image import ALL_BROKERS, MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.root import admin
from pyspark_kafkalog.root.admin import TopicChange, check_new_topic
from pyspark_kafkalog.root.brokers.quorum import node_id_of
from pyspark_kafkalog.root.protocol import native_or_none
from pyspark_kafkalog.root.snapshot import PartitionSnapshot, ReplicaState, TopicDescription
from pyspark_kafkalog.security.open import find_root
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, validate_topic_name
from pyspark_kafkalog.tools.command import (
    Failures,
    UsageError,
    add_path,
    add_read_to_log_end,
    add_remote_storage,
    selected_topics,
)
from pyspark_kafkalog.tools.output import Output, Tree, add_output, output_of
from pyspark_kafkalog.tools.running import (
    broker_metadata,
    describe_topic,
    metadata_of_copy,
    open_log_dir,
    say_what_it_follows,
)
from pyspark_kafkalog.tools.terminal import NO_VALUE, Grid, Heading, number_text
from pyspark_kafkalog.units import plural, printable, size_text

if TYPE_CHECKING:
    from pyspark_kafkalog.root.brokers.image import BrokerMetadata, BrokerPartition, BrokerTopic

_COLLISION_WARNING: Final = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. "
    "To avoid issues it is best to use either, but not both."
)
_UNKNOWN_NODE: Final = "none"
_ACTIONS: Final = ("create", "list", "describe", "alter", "delete")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of kafka-topics that apply to a log directory, `--path` and `--output`."""
    add_path(parser)
    add_remote_storage(parser)
    add_read_to_log_end(parser)
    actions = parser.add_mutually_exclusive_group(required=True)
    actions.add_argument("--create", action="store_true", help="create a topic, and the log directory if needed")
    actions.add_argument("--list", action="store_true", help="print the names of the topics")
    actions.add_argument("--describe", action="store_true", help="print ids, configurations and partitions")
    actions.add_argument("--alter", action="store_true", help="add partitions, set or delete configurations")
    actions.add_argument("--delete", action="store_true", help="delete topics with all their records")
    parser.add_argument("--topic", metavar="NAME", help="the topic, or a regular expression of topics")
    parser.add_argument("--partitions", type=int, metavar="N", help="number of partitions (--create, --alter)")
    parser.add_argument(
        "--replication-factor", type=int, metavar="N", help="1, as a log directory has one replica (--create)"
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="configuration to set (--create, --alter); may be repeated",
    )
    parser.add_argument(
        "--delete-config",
        action="append",
        default=[],
        metavar="NAME",
        help="configuration to reset to its default (--alter); may be repeated",
    )
    parser.add_argument("--if-not-exists", action="store_true", help="do nothing if the topic exists (--create)")
    parser.add_argument(
        "--if-exists", action="store_true", help="do nothing if there is no such topic (--describe, --alter, --delete)"
    )
    parser.add_argument("--exclude-internal", action="store_true", help="leave out Kafka's internal topics")
    add_output(parser, "one object a line, by topic")


def run(options: argparse.Namespace) -> int:
    """Run the command; prints to sys.stdout."""
    action = next(name for name in _ACTIONS if getattr(options, name))
    _check_options(action, options)
    return _RUNS[action](options, output_of(options))


def _check_options(action: str, options: argparse.Namespace) -> None:
    """Refuse options that do not apply to the action, as kafka-topics does."""
    if action in ("create", "alter", "delete") and not options.topic:
        raise UsageError(f"--{action} needs --topic")
    allowed = {
        "partitions": ("create", "alter"),
        "replication_factor": ("create",),
        "config": ("create", "alter"),
        "delete_config": ("alter",),
        "if_not_exists": ("create",),
        "if_exists": ("describe", "alter", "delete"),
    }
    for name, actions in allowed.items():
        if getattr(options, name) not in (None, False, []) and action not in actions:
            raise UsageError(f"--{name.replace('_', '-')} can't be used with --{action}")
    if action == "alter" and options.partitions is None and not options.config and not options.delete_config:
        raise UsageError("--alter needs --partitions, --config or --delete-config")


def _create(options: argparse.Namespace, output: Output) -> int:
    name = validate_topic_name(options.topic)  # before a log directory is created for it
    configs = _parse_configs(options.config)
    if options.partitions is not None and options.partitions < 1:
        raise UsageError("The partitions must be greater than 0")
    if options.replication_factor not in (None, -1, 1):
        raise UsageError(
            f"--replication-factor {options.replication_factor}: a log directory has one replica; copies are the file "
            "system's affair"
        )
    _check_for_new_root(options, name, configs)
    log_dir = LogDir.open_or_create(options.path)
    try:
        described = log_dir.create_topic(name, partitions=options.partitions, configs=configs)
    except TopicExistsError:
        # A name that only collides with another topic's raises the same error, but its topic does not exist.
        if options.if_not_exists and name in log_dir.topics():
            return 0
        raise
    if "." in name or "_" in name:
        output.text(_COLLISION_WARNING + "\n")
    node_id = node_id_of(log_dir.root)
    output.show(described, lambda each: _tree(each, node_id), lambda each: f"Created topic {each.name}.\n")
    return 0


def _check_for_new_root(options: argparse.Namespace, name: str, configs: Mapping[str, str]) -> None:
    """Raise what a new log directory would raise for the topic, before it is created."""
    try:
        check_new_topic(MetadataImage(), name, partitions=options.partitions or 1, configs=configs)
    except KafkalogError:
        if find_root(options.path) is None:
            raise


def _list(options: argparse.Namespace, output: Output) -> int:
    log_dir = open_log_dir(options)
    metadata = metadata_of_copy(log_dir)
    for name in _find(log_dir.topics() if metadata is None else metadata.topics, options, must_exist=False):
        output.show(name, lambda each: {"topic": each}, lambda each: each + "\n")
    return 0


def _describe(options: argparse.Namespace, output: Output) -> int:
    log_dir = open_log_dir(options)
    metadata = metadata_of_copy(log_dir)
    if metadata is not None:
        for name in _find(metadata.topics, options, must_exist=not options.if_exists):
            _show_copied(output, metadata.topics[name], metadata)
        return 0
    say_what_it_follows(log_dir.root)
    node_id = node_id_of(log_dir.root)
    node = _node_text(node_id)
    assigned = _assigned(log_dir) if len(log_dir.root.directories) > 1 else {}
    failures = Failures("topics")
    for name in _find(log_dir.topics(), options, must_exist=not options.if_exists):
        output.show(
            describe_topic(failures, log_dir, name),
            lambda each: _tree(each, node_id),
            lambda each: _description(each, _configs_in_force(log_dir, each), node, assigned.get(each.name, {})),
            lambda each: _grid(each, _configs_in_force(log_dir, each)),
        )
    return failures.exit_code


def _alter(options: argparse.Namespace, output: Output) -> int:
    log_dir = open_log_dir(options)
    configs = _parse_configs(options.config)
    native = log_dir.root.native()
    changes = [
        _alteration(name, options, configs)
        for name in _find(log_dir.topics(), options, must_exist=not options.if_exists)
    ]
    for validate_only in (True, False):
        errors = native.change_topics(
            changes, operation="alter topics", frees_space=options.partitions is None, validate_only=validate_only
        )
        for error in filter(None, errors):
            raise error
    node_id = node_id_of(log_dir.root)
    for change in changes:
        output.data(_tree(log_dir.topic(change.name), node_id))
    return 0


def _alteration(name: str, options: argparse.Namespace, configs: Mapping[str, str]) -> TopicChange:
    """The change of one topic: partitions and configurations together."""

    def build(image: MetadataImage) -> list[MetadataRecord]:
        records: list[MetadataRecord] = []
        if options.partitions is not None:
            records += admin.add_partitions(image, name, total=options.partitions)
        if configs or options.delete_config:
            broker = admin.broker_config(image).properties
            records += admin.alter_configs(
                image, name, add=configs, delete=options.delete_config, broker_configs=broker
            )
        return records

    return admin.TopicChange(name, build)


def _delete(options: argparse.Namespace, output: Output) -> int:
    log_dir = open_log_dir(options)
    names = _find(log_dir.topics(), options, must_exist=not options.if_exists)
    for error in filter(None, log_dir.root.native().delete_topics(dict.fromkeys(names)) if names else ()):
        raise error
    for name in names:
        output.data({"topic": name, "deleted": True})
    return 0


_RUNS: Final = {"create": _create, "list": _list, "describe": _describe, "alter": _alter, "delete": _delete}


def _find(topics: Iterable[str], options: argparse.Namespace, *, must_exist: bool) -> list[str]:
    """Those of `topics` that --topic selects, or all without it; internal ones unless they are excluded."""
    names = [name for name in topics if not (options.exclude_internal and name in INTERNAL_TOPICS)]
    if not options.topic:
        return sorted(names)
    found = selected_topics(options.topic, names)
    if not found and must_exist:
        raise UnknownTopicError(f"Topic '{options.topic}' does not exist as expected")
    return found


def _parse_configs(settings: Sequence[str]) -> dict[str, str]:
    configs: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--config {setting}: all configs must be in the format name=value")
        configs[name.strip()] = value.strip()
    return configs


def _configs_in_force(log_dir: LogDir, described: TopicDescription) -> Mapping[str, str]:
    """The configuration that kafka-topics shows: the topic's own values and those set for all brokers."""
    native = native_or_none(log_dir.root)
    broker = {} if native is None else native.broker_configs()
    if not broker:
        return described.configs
    entries = topic_entries(described.configs, broker)
    return {each.name: each.value or "" for each in entries if each.is_set}


def _node_text(node_id: int | None) -> str:
    return _UNKNOWN_NODE if node_id is None else str(node_id)


def _assigned(log_dir: LogDir) -> Mapping[str, Mapping[int, Sequence[int]]]:
    """The nodes of each partition's replicas, by topic, as far as the metadata log of several directories says."""
    topics = broker_metadata(log_dir).topics
    return {
        name: {number: each.replicas for number, each in found.partitions.items()} for name, found in topics.items()
    }


def _description(
    described: TopicDescription, in_force: Mapping[str, str], node: str, assigned: Mapping[int, Sequence[int]]
) -> str:
    """The lines of kafka-topics --describe; `assigned` are the replicas' nodes as far as known."""
    configs = ",".join(f"{name}={value}" for name, value in sorted(in_force.items()))
    topic_id = f"\tTopicId: {described.topic_id}" if described.topic_id is not None else ""
    head = (
        f"Topic: {described.name}{topic_id}\tPartitionCount: {len(described.partitions) + len(described.unreadable)}"
        f"\tReplicationFactor: {_replication_factor(described, assigned)}\tConfigs: {printable(configs)}\n"
    )
    return head + "".join(
        _partition_lines(partition, node, assigned.get(partition.partition)) for partition in described.partitions
    )


#: So many empty partitions of a topic are shown on a terminal: an internal topic has 50, and few of them in use.
_EMPTY_MAX: Final = 8
_PARTITION_HEADINGS: Final = (
    Heading("PARTITION", is_number=True),
    Heading("LEADER", is_number=True, is_optional=True),
    Heading("REPLICAS", is_optional=True),
    Heading("START", is_number=True),
    Heading("END", is_number=True),
    Heading("OFFSETS", is_number=True),
    Heading("REMOTE", is_number=True, is_optional=True),
    Heading("NOT IN SYNC", is_optional=True, style=lambda _: "yellow"),
)


def _grid(described: TopicDescription, in_force: Mapping[str, str]) -> Grid:
    """The partitions with their offsets, and what is set, for people."""
    counted = plural(len(described.partitions) + len(described.unreadable), "partition")
    title = f"{described.name}: {counted}" + (f", id {described.topic_id}" if described.topic_id else "")
    notes = [", ".join(f"{name}={value}" for name, value in sorted(in_force.items()))]
    shown = list(described.partitions)
    empty = [each for each in shown if each.high_watermark == 0 and not each.replicas]
    if len(empty) > _EMPTY_MAX:
        notes.append(f"{len(empty)} empty partitions are left out")
        shown = [each for each in shown if each not in empty]
    return Grid(_PARTITION_HEADINGS, map(_partition_cells, shown), title=title, notes=notes)


def _partition_cells(partition: PartitionSnapshot) -> list[str]:
    replicas = [_node_text(each.node_id) for each in partition.replicas]
    behind = [
        f"{_node_text(each.node_id)}: {state}" for each in partition.replicas if (state := _state(partition, each))
    ]
    remote_bytes = 0 if partition.remote is None else sum(each.size_bytes for each in partition.remote.log.segments)
    return [
        str(partition.partition),
        replicas[0] if replicas else NO_VALUE,
        ",".join(replicas) or NO_VALUE,
        number_text(partition.log_start_offset),
        number_text(partition.high_watermark),
        number_text(partition.high_watermark - partition.log_start_offset),
        size_text(remote_bytes) if remote_bytes else NO_VALUE,
        "; ".join(behind) or NO_VALUE,
    ]


def _replication_factor(described: TopicDescription, assigned: Mapping[int, Sequence[int]]) -> int:
    """That of the first partition, as in kafka-topics."""
    if not described.partitions:
        return 1
    first = described.partitions[0]
    return len(assigned.get(first.partition) or _of_topic(first)) or 1


def _of_topic(partition: PartitionSnapshot) -> list[ReplicaState]:
    return [each for each in partition.replicas if not each.is_of_other_topic]


def _partition_lines(partition: PartitionSnapshot, node: str, assigned: Sequence[int] | None) -> str:
    leader = replicas = in_sync = node
    if partition.replicas:
        states = {each: _state(partition, each) for each in partition.replicas}
        leader = _node_text(partition.replicas[0].node_id)
        present = [_node_text(each.node_id) for each in _of_topic(partition)]
        replicas = ",".join(map(str, assigned) if assigned else dict.fromkeys(present))
        in_sync = ",".join(dict.fromkeys(_node_text(each.node_id) for each, state in states.items() if not state))
    line = (
        f"\tTopic: {partition.topic}\tPartition: {partition.partition}\tLeader: {leader}\tReplicas: {replicas}"
        f"\tIsr: {in_sync}\tElr: \tLastKnownElr: \n"
    )
    return (
        line
        + "".join(
            f"\tTopic: {partition.topic}\tPartition: {partition.partition}\tReplica: {_node_text(each.node_id)}"
            f"\tDirectory: {each.directory.parent}\tLeaderEpoch: {each.leader_epoch}"
            f"\tHighWatermark: {each.high_watermark}\tLogEndOffset: {each.log_end_offset}\t{state}\n"
            for each in partition.replicas
            if (state := _state(partition, each))
        )
        + _remote_line(partition)
    )


def _remote_line(partition: PartitionSnapshot) -> str:
    """What of a partition is in remote storage; empty if nothing is, or it is not known."""
    if partition.remote is None or not partition.remote.log.segments:
        return ""
    segments = partition.remote.log.segments
    size_bytes = sum(each.size_bytes for each in segments)
    return (
        f"\tTopic: {partition.topic}\tPartition: {partition.partition}\tRemoteSegments: {len(segments)}"
        f"\tRemoteBytes: {size_bytes}\tLogStartOffset: {partition.log_start_offset}"
        f"\tLocalLogStartOffset: {partition.local_log_start_offset}"
        f"\tLatestTieredOffset: {partition.latest_tiered_offset}\n"
    )


def _state(partition: PartitionSnapshot, replica: ReplicaState) -> str:
    """How a replica is not as the one that is read; empty if it is."""
    if replica.is_of_other_topic:
        return f"of a deleted topic of that name, {replica.topic_id}"
    found = replica.difference
    if found is not None:
        return f"other records from offset {found.offset} on, of leader epoch {found.other_epoch}, not {found.epoch}"
    behind = partition.high_watermark - replica.log_end_offset
    return f"behind by {plural(behind, 'offset')}" if behind > 0 else ""


def _tree(described: TopicDescription, node_id: int | None) -> dict[str, Any]:
    return {
        "topic": described.name,
        "topicId": described.topic_id,
        "partitionCount": len(described.partitions) + len(described.unreadable),
        "configs": dict(sorted(described.configs.items())),
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.replicas[0].node_id if partition.replicas else node_id,
                "leaderEpoch": partition.leader_epoch,
                "logStartOffset": partition.log_start_offset,
                "localLogStartOffset": partition.local_log_start_offset,
                "highWatermark": partition.high_watermark,
                "logEndOffset": partition.log_end_offset,
                "directory": None if partition.local_directory is None else str(partition.local_directory),
            }
            | _replicas_tree(partition)
            | _remote_tree(partition)
            for partition in described.partitions
        ],
    }


def _remote_tree(partition: PartitionSnapshot) -> dict[str, Any]:
    """What is in remote storage; nothing if it is not known."""
    if partition.remote is None:
        return {}
    segments = partition.remote.log.segments
    return {
        "remoteSegments": len(segments),
        "remoteBytes": sum(each.size_bytes for each in segments),
        "latestTieredOffset": partition.latest_tiered_offset,
    }


def _replicas_tree(partition: PartitionSnapshot) -> dict[str, Any]:
    """The replicas in several directories of brokers; nothing for one directory."""
    if not partition.replicas:
        return {}
    return {
        "replicas": [
            {
                "node": each.node_id,
                "directory": str(each.directory),
                "topicId": each.topic_id,
                "leaderEpoch": each.leader_epoch,
                "logStartOffset": each.log_start_offset,
                "localLogStartOffset": each.local_log_start_offset,
                "highWatermark": each.high_watermark,
                "logEndOffset": each.log_end_offset,
                "isOfOtherTopic": each.is_of_other_topic,
                "behind": max(partition.high_watermark - each.log_end_offset, 0),
                "differsFrom": None if each.difference is None else each.difference.offset,
            }
            for each in partition.replicas
        ]
    }


# Topics in a copy of a cluster's metadata log


def _show_copied(output: Output, topic: BrokerTopic, metadata: BrokerMetadata) -> None:
    """Print a topic as kafka-topics --describe does: with its own configurations and those set for all brokers."""
    configs = _copied_configs(metadata.topic_configs.get(topic.name, {}), metadata.broker_configs.get(ALL_BROKERS, {}))
    output.show(topic, lambda each: _copied_tree(each, configs), lambda each: _copied_text(each, configs))


def _copied_configs(own: Mapping[str, str], broker: Mapping[str, str]) -> Mapping[str, str]:
    known = {name: value for name, value in own.items() if name in TOPIC_CONFIGS}
    entries = topic_entries(known, broker)
    return {**own, **{each.name: each.value or "" for each in entries if each.is_set}}


def _copied_tree(topic: BrokerTopic, configs: Mapping[str, str]) -> Tree:
    return {
        "topic": topic.name,
        "topicId": topic.topic_id,
        "partitionCount": len(topic.partitions),
        "configs": dict(sorted(configs.items())),
        "partitions": [
            {
                "partition": number,
                "leader": each.leader if each.leader >= 0 else None,
                "leaderEpoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "elr": list(each.elr),
                "lastKnownElr": list(each.last_known_elr),
            }
            for number, each in sorted(topic.partitions.items())
        ],
    }


def _copied_text(topic: BrokerTopic, configs: Mapping[str, str]) -> str:
    texts = ",".join(f"{name}={value}" for name, value in sorted(configs.items()))
    first = topic.partitions.get(0)
    head = (
        f"Topic: {topic.name}\tTopicId: {topic.topic_id}\tPartitionCount: {len(topic.partitions)}"
        f"\tReplicationFactor: {0 if first is None else len(first.replicas)}\tConfigs: {texts}\n"
    )
    return head + "".join(_copied_partition_text(topic.name, *each) for each in sorted(topic.partitions.items()))


def _copied_partition_text(topic: str, number: int, partition: BrokerPartition) -> str:
    leader = str(partition.leader) if partition.leader >= 0 else "none"
    return (
        f"\tTopic: {topic}\tPartition: {number}\tLeader: {leader}\tReplicas: {_ids(partition.replicas)}"
        f"\tIsr: {_ids(partition.isr)}\tElr: {_ids(partition.elr)}\tLastKnownElr: {_ids(partition.last_known_elr)}\n"
    )


def _ids(nodes: Collection[int]) -> str:
    return ",".join(map(str, nodes))
