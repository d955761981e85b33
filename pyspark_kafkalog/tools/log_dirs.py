"""`kafkalog log-dirs`: print the sizes of partitions as kafka-log-dirs does, in its JSON.

A size is that of the partition's .log files, up to the high watermark; offsetLag is 0, because there is one replica.
kafkalog du shows all other disk usage.

examples:
  kafkalog log-dirs --path /data/log --describe
  kafkalog log-dirs --path /data/log --describe --topic-list orders,returns
  kafkalog log-dirs --path /data/log --describe --output json | jq '.brokers[].logDirs[].partitions'
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.metadata.messages.json_form import json_text
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition
from pyspark_kafkalog.tools.command import UsageError, add_output, add_path, describe_topic, node_id_of, open_log_dir
from pyspark_kafkalog.tools.partition_files import list_partition

if TYPE_CHECKING:
    from pyspark_kafkalog.root.descriptions import PartitionDescription

_NO_NODE = -1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of kafka-log-dirs, `--path` and `--output`."""
    add_path(parser)
    parser.add_argument("--describe", action="store_true", required=True, help="print the sizes of partitions")
    parser.add_argument("--topic-list", default="", metavar="T[,T]", help="only these topics")
    parser.add_argument("--broker-list", default="", metavar="ID[,ID]", help="the node's number, if any is given")
    add_output(parser, "the JSON alone, without the two lines that kafka-log-dirs prints before")


def run(options: argparse.Namespace) -> int:
    """Print Kafka's JSON to sys.stdout."""
    node_id = node_id_of(options.path)
    node = _NO_NODE if node_id is None else node_id
    _check_brokers(options.broker_list, node)
    log_dir = open_log_dir(options)
    wanted = {name for name in options.topic_list.split(",") if name}
    partitions = [
        _tree(each)
        for name in log_dir.topics()
        if not wanted or name in wanted
        for each in describe_topic("log-dirs", log_dir, name).partitions
    ]
    tree = {
        "brokers": [
            {
                "broker": node,
                "logDirs": [{"partitions": partitions, "error": None, "logDir": str(Path(options.path).absolute())}],
            }
        ],
        "version": 1,
    }
    if options.output != "json":
        sys.stdout.write("Querying brokers for log directories information\n")
        sys.stdout.write(f"Received log directory information from brokers {node}\n")
    sys.stdout.write(json_text(tree) + "\n")
    return 0


def _check_brokers(text: str, node_id: int) -> None:
    asked = [each for each in text.split(",") if each]
    if not all(each.isdecimal() for each in asked):
        raise UsageError(f"--broker-list expects numbers with commas between them, but received: {text}")
    unknown = [each for each in asked if int(each) != node_id]
    if unknown:
        raise UsageError(
            f"ERROR: The given brokers do not exist from --broker-list: {','.join(unknown)}. "
            f"Current existent brokers: {node_id}"
        )


def _tree(partition: PartitionDescription) -> dict[str, Any]:
    name = TopicPartition(partition.topic, partition.partition)
    return {"partition": str(name), "size": _size_bytes(partition, name), "offsetLag": 0, "isFuture": False}


def _size_bytes(partition: PartitionDescription, name: TopicPartition) -> int:
    """Bytes of the segments; of the active one only the committed bytes."""
    try:
        sizes = {
            each.base_offset: each.size_bytes
            for each in list_partition(partition.directory, name)
            if each.base_offset is not None and each.name.endswith(LOG_SUFFIX)
        }
    except FileNotFoundError:
        return 0  # its creator was killed before it created the directory
    if partition.active_size_bytes >= 0:
        sizes = {base: size for base, size in sizes.items() if base < partition.active_base_offset}
        return sum(sizes.values()) + partition.active_size_bytes
    return sum(sizes.values())
