"""The commands `adopt` and `export`: from a Kafka broker's log directory to a native one, and back.

After the directory of a broker was adopted and changed, `broker_script` creates the shell script that applies the
changes to the broker. Commands that create come first, then those that delete. All of them can be repeated, except
deletions of configurations. A re-created topic keeps the broker's id, unless the broker has too many partitions:
partitions cannot be removed from a topic, so it is deleted and created. Source of the rules: the tools of Kafka 4.1,
and kafka.server.DynamicBrokerConfig.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark_kafkalog.config.broker import DYNAMIC_BROKER_CONFIGS, OWN_CONFIGS
from pyspark_kafkalog.errors import ReadOnlyLogDirError, UnknownTopicError
from pyspark_kafkalog.maintenance.export.broker_differences import BrokerDifferences, ConfigDifference, TopicDifference
from pyspark_kafkalog.maintenance.export.broker_directory import ExportedBroker
from pyspark_kafkalog.maintenance.export.copy import ExportedPartition
from pyspark_kafkalog.maintenance.export.export import export_new_broker, export_to, return_to_broker
from pyspark_kafkalog.metadata.acl import Acl, PermissionType, ResourceType
from pyspark_kafkalog.metadata.image import ALL_BROKERS
from pyspark_kafkalog.root.adopt.adopt import AdoptedPartition, Adoption, adopt
from pyspark_kafkalog.root.file_root import FileRoot, on_file_system
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.tools.command import UsageError, selected_topics
from pyspark_kafkalog.tools.output import output_of
from pyspark_kafkalog.tools.running import open_log_dir
from pyspark_kafkalog.tools.transactions import describe_open, ending_command, ending_commands, open_tree
from pyspark_kafkalog.units import plural, printable


def run_adopt(options: argparse.Namespace) -> int:
    """Adopt the directory; prints the adopted topics to sys.stdout."""

    if isinstance(options.path, str):
        raise UsageError(
            f"{options.path}: expected a broker's directory on a file system, found a place in an object store; write "
            "the broker's records there with Spark, from its directory or from its remote storage"
        )
    outcome = adopt(
        options.path,
        server_properties=options.server_properties,
        create_missing=options.create_missing,
        local_only=options.local_only,
        dry_run=options.dry_run,
    )
    output_of(options).show(outcome, _adoption_tree, lambda each: "".join(_adoption_lines(each)))
    return 0


def _adoption_lines(outcome: Adoption) -> Iterator[str]:
    topics = plural(len(outcome.topics), "topic")
    if outcome.was_native:
        yield f"{outcome.root} is a native log directory already: nothing to do.\n"
    elif outcome.dry_run:
        yield f"{outcome.root} can be adopted: {topics}. Nothing was changed.\n"
    else:
        partitions = plural(len(outcome.partitions), "partition")
        yield f"Adopted {outcome.root}: {topics} with {partitions}.\n"
    for note in outcome.notes:
        yield f"  {' '.join(note.split())}\n"
    for each in outcome.partitions:
        if each.cut_bytes:
            yield f"  {each.topic_partition}: {each.cut_bytes} bytes of a damaged tail were cut off\n"
    yield from _transaction_lines(outcome)
    if outcome.kept_metadata is not None and not outcome.was_native:
        done = "would be kept" if outcome.dry_run else "is kept"
        yield f"  the broker's metadata log {done} as {outcome.kept_metadata.name}\n"


def _transaction_lines(outcome: Adoption) -> Iterator[str]:
    found = outcome.open_transactions
    now_ms = time_ms()
    for each in found.in_partitions:
        yield f"  {each.topic_partition}: {describe_open(each, now_ms)}\n"
    for state in found.states:
        if not any(each.state is state for each in found.in_partitions):
            yield (f"  transactional id {state.transactional_id}: {state.status_name}, with no open records here\n")
    commands = ending_commands(outcome.root, found)
    if commands:
        when = "after adopting, end" if outcome.dry_run else "end"
        yield f"  read_committed ends where a transaction is open; {when} them with\n"
        for command in commands:
            yield f"    {command}\n"
    if any(each.transactional_id is None for each in found.in_partitions):
        yield (
            "  a transaction without a transactional id may have been committed: if the broker has other directories, "
            "look for its producer id in their __transaction_state before you abort it\n"
        )


def _adoption_tree(outcome: Adoption) -> dict[str, Any]:
    return {
        "path": str(outcome.root),
        "dryRun": outcome.dry_run,
        "wasNative": outcome.was_native,
        "topics": [{"topic": name, "topicId": topic_id} for name, topic_id in outcome.topics.items()],
        "partitions": [_adopted_tree(each) for each in outcome.partitions],
        "nextProducerId": outcome.next_producer_id,
        "keptMetadata": None if outcome.kept_metadata is None else str(outcome.kept_metadata),
        "notes": list(outcome.notes),
        "openTransactions": [
            {**open_tree(each), "command": ending_command(outcome.root, each)}
            for each in outcome.open_transactions.in_partitions
        ],
    }


def _adopted_tree(each: AdoptedPartition) -> dict[str, Any]:
    return {
        "topic": each.topic_partition.topic,
        "partition": each.topic_partition.partition,
        "logStartOffset": each.log_start_offset,
        "highWatermark": each.high_watermark,
        "lastStableOffset": each.last_stable_offset,
        "leaderEpoch": each.leader_epoch,
        "cutBytes": each.cut_bytes,
    }


def run_export(options: argparse.Namespace) -> int:
    """Export; prints the exported partitions to sys.stdout."""
    _check_export(options)

    settings: Mapping[str, str] = {}
    exported: Sequence[ExportedPartition]
    root = open_log_dir(options).root
    if not options.new_broker:
        _refuse_broker(root)
    if options.to is None:
        exported = _return_to_broker(on_file_system(root, instead="copy it to files with --to DIR"), options)
        if options.set_aside is not None:
            return 0
    elif options.new_broker:
        broker = _new_broker(root, options)
        exported, settings = broker.partitions, broker.server_properties
        sys.stderr.writelines(f"kafkalog export: {printable(each)}\n" for each in broker.notes)
    else:
        exported = _export_to(root, options)
    output_of(options).show_all(exported, _exported_tree, lambda _: [_exported_text(exported, options.to)])
    if options.tiered:
        sys.stderr.write(
            "kafkalog export: two owners delete each other's segments in remote storage: use the exported directory or "
            "the original from now on, never both\n"
        )
    if settings and options.output != "json":
        sys.stdout.write("The broker's server.properties, besides its listeners and remote storage:\n")
        sys.stdout.writelines(f"{name}={value}\n" for name, value in settings.items())
    return 0


def _check_export(options: argparse.Namespace) -> None:
    """Raise UsageError for options that do not fit."""
    if options.to is None and (options.topic is not None or options.copy or options.overwrite):
        raise UsageError("--topic, --copy and --overwrite need --to")
    if options.to is not None and (options.set_aside is not None or options.server_properties is not None):
        raise UsageError("--set-aside and --server-properties cannot be used with --to")
    if options.set_aside is not None and options.output == "json":
        raise UsageError("--set-aside prints a script, which --output json cannot")
    if options.new_broker and (options.to is None or options.overwrite):
        raise UsageError("--new-broker needs --to, and cannot be used with --overwrite")
    if options.tiered and options.to is None:
        raise UsageError("--tiered needs --to")
    if options.metadata_partitions < 1:
        raise UsageError(f"--metadata-partitions must be 1 or more, not {options.metadata_partitions}")


def _refuse_broker(root: Root) -> None:
    """Raise ReadOnlyLogDirError for a broker's directory, with what can be done with it."""
    if native_or_none(root) is None and len(root.directories) == 1:
        raise ReadOnlyLogDirError(
            f"{root.path} is a Kafka broker's log directory, which its broker mounts as it is: --to DIR --new-broker "
            "copies it for another broker, and after kafkalog adopt, export makes any copy of it"
        )


def _new_broker(root: Root, options: argparse.Namespace) -> ExportedBroker:

    return export_new_broker(
        root,
        options.to,
        _chosen_topics(root, options),
        metadata_partitions=options.metadata_partitions,
        link=not options.copy,
        tiered=options.tiered,
    )


def _export_to(root: Root, options: argparse.Namespace) -> Sequence[ExportedPartition]:

    if options.tiered and not root.directories:
        raise UsageError("--tiered needs --new-broker for a log directory on an object store")
    return export_to(
        root,
        options.to,
        _chosen_topics(root, options),
        link=not options.copy,
        overwrite=options.overwrite,
        tiered=options.tiered,
    )


def _chosen_topics(root: Root, options: argparse.Namespace) -> list[str] | None:
    """The topics of --topic; None without it. Raises UnknownTopicError if there are none."""
    if options.topic is None:
        return None

    topics = selected_topics(options.topic, root.topics())
    if not topics:
        raise UnknownTopicError(f"there is no topic {options.topic} in {options.path}")
    return topics


def _return_to_broker(root: FileRoot, options: argparse.Namespace) -> Sequence[ExportedPartition]:
    """Export in place; with --set-aside, print the script for the broker."""

    done = return_to_broker(root, set_aside=options.set_aside, server_properties=options.server_properties)
    if done.differences is None:
        sys.stderr.write(
            "No metadata log of a broker is kept here, so it is unknown which topics and configurations it has.\n"
        )
    elif options.set_aside is not None:
        sys.stdout.write(broker_script(options.path.resolve(), done.differences, done.aside))
    return done.exported


def _exported_text(exported: Sequence[ExportedPartition], target: Path | None) -> str:
    if target is None:
        return f"Wrote the checkpoints of {len(exported)} partitions.\n"
    linked, copied = sum(each.linked_bytes for each in exported), sum(each.copied_bytes for each in exported)
    return f"Exported {len(exported)} partitions to {target}: {linked} bytes linked, {copied} bytes copied.\n"


def _exported_tree(each: ExportedPartition) -> dict[str, object]:
    return {
        "topic": each.topic_partition.topic,
        "partition": each.topic_partition.partition,
        "logStartOffset": each.log_start_offset,
        "highWatermark": each.high_watermark,
        "linkedBytes": each.linked_bytes,
        "copiedBytes": each.copied_bytes,
    }


_BROKER: Final = '--bootstrap-server "${BOOTSTRAP:-localhost:9092}"'
_RESOURCE_OPTIONS: Final[Mapping[ResourceType, str]] = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.DELEGATION_TOKEN: "--delegation-token",
    ResourceType.USER: "--user-principal",
}


def broker_script(root: Path, differences: BrokerDifferences, aside: Path | None) -> str:
    """The script; comments state the steps before and after it."""
    if not differences:
        return f"# {root} has no changes that the broker does not know: there is nothing to run.\n"
    commands = list(_commands(differences))
    mount = f"kafkalog export --path {_quoted(str(aside))} --to {_quoted(str(root))}"
    lines = [
        f"# Commands for the broker after it has mounted {root} again.",
        "# Run it with `sh -e` while the broker is running and before clients use it. BOOTSTRAP is its address.",
        *(f"# {each}" for each in differences.descriptions()),
        *commands,
    ]
    if aside is not None:
        lines += [
            "# Then stop the broker, bring over the records that were set aside, and start it again:",
            f"#   {mount}",
        ]
    return "".join(f"{line}\n" for line in lines)


def _commands(differences: BrokerDifferences) -> Iterator[str]:
    for topic in differences.topics:
        yield from _topic_commands(topic)
    recreated = {each.topic.name for each in differences.topics if _is_replaced(each)}
    for change in differences.topic_configs:
        if change.name not in recreated:
            yield from _config_commands(f"--entity-type topics --entity-name {_quoted(change.name)}", change)
    for change in differences.broker_configs:
        yield from _broker_config_commands(change)
    for acl in differences.acls_added:
        yield f"kafka-acls.sh {_BROKER} --add {_acl_options(acl)}"
    for name in differences.deleted:
        yield f"kafka-topics.sh {_BROKER} --delete --if-exists --topic {_pattern(name)}"
    for acl in differences.acls_removed:
        yield f"kafka-acls.sh {_BROKER} --remove --force {_acl_options(acl)}"


def _is_replaced(change: TopicDifference) -> bool:
    return change.recreated and change.broker_partitions > len(change.topic.partitions)


def _topic_commands(change: TopicDifference) -> Iterator[str]:
    name, total = change.topic.name, len(change.topic.partitions)
    if _is_replaced(change):
        yield f"kafka-topics.sh {_BROKER} --delete --if-exists --topic {_pattern(name)}"
    if not change.broker_partitions or _is_replaced(change):
        configs = "".join(
            f" --config {_quoted(f'{key}={value}')}"
            for key, value in sorted(change.topic.configs.items())
            if key not in OWN_CONFIGS
        )
        yield (
            f"kafka-topics.sh {_BROKER} --create --if-not-exists --topic {_quoted(name)} --partitions {total}{configs}"
        )
    elif change.broker_partitions < total:
        yield f"kafka-topics.sh {_BROKER} --alter --topic {_pattern(name)} --partitions {total}"


def _broker_config_commands(change: ConfigDifference) -> Iterator[str]:
    entity = "--entity-default" if change.name == ALL_BROKERS else f"--entity-name {change.name}"
    dynamic = ConfigDifference(
        name=change.name,
        added={key: value for key, value in change.added.items() if key in DYNAMIC_BROKER_CONFIGS},
        deleted=tuple(key for key in change.deleted if key in DYNAMIC_BROKER_CONFIGS),
    )
    yield from _config_commands(f"--entity-type brokers {entity}", dynamic)
    for key, value in change.added.items():
        if key not in DYNAMIC_BROKER_CONFIGS:
            yield f"# in the broker's server.properties, before it is started: {key}={value}"
    for key in change.deleted:
        if key not in DYNAMIC_BROKER_CONFIGS:
            yield f"# in the broker's server.properties, before it is started: remove {key}"


def _config_commands(entity: str, change: ConfigDifference) -> Iterator[str]:
    command = f"kafka-configs.sh {_BROKER} --alter {entity}"
    if change.added:
        # Brackets keep the commas of a value together.
        settings = ",".join(
            f"{key}=[{value}]" if "," in value else f"{key}={value}" for key, value in change.added.items()
        )
        yield f"{command} --add-config {_quoted(settings)}"
    if change.deleted:
        yield f"{command} --delete-config {_quoted(','.join(change.deleted))}"


def _acl_options(acl: Acl) -> str:
    resource = (
        "--cluster"
        if acl.resource_type is ResourceType.CLUSTER
        else f"{_RESOURCE_OPTIONS[acl.resource_type]} {_quoted(acl.resource_name)}"
    )
    permission = "allow" if acl.permission is PermissionType.ALLOW else "deny"
    operation = acl.operation.name.title().replace("_", "")
    return (
        f"--{permission}-principal {_quoted(acl.principal)} --{permission}-host {_quoted(acl.host)} "
        f"--operation {operation} {resource} --resource-pattern-type {acl.pattern_type.name.lower()}"
    )


def _pattern(topic: str) -> str:
    """A topic as the regular expression that kafka-topics expects to alter and to delete."""
    return _quoted(re.sub(r"\.", r"\\.", topic))


def _quoted(text: str) -> str:
    return shlex.quote(text)
