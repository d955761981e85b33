"""Maps the scripts of Kafka's tools to the commands here: `kafka-topics.sh` is `topics`.

Imported only for a name that is not a command.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

_NO_MEMBERS: Final = "groups have no members here; kafkalog consumer-groups has their offsets"
_NO_BROKER: Final = "no broker runs here"
#: The command that corresponds to a script of Kafka.
COUNTERPARTS: Final[dict[str, str]] = {
    "kafka-acls": "acls",
    "kafka-configs": "configs",
    "kafka-console-consumer": "console-consumer",
    "kafka-console-producer": "console-producer",
    "kafka-consumer-groups": "consumer-groups",
    "kafka-consumer-perf-test": "perf-test consumer",
    "kafka-delete-records": "delete-records",
    "kafka-dump-log": "dump-log",
    "kafka-get-offsets": "get-offsets",
    "kafka-groups": "consumer-groups --list",
    "kafka-jmx": "metrics",
    "kafka-log-dirs": "log-dirs",
    "kafka-metadata-quorum": "metadata-quorum",
    "kafka-producer-perf-test": "perf-test producer",
    "kafka-topics": "topics",
    "kafka-transactions": "transactions",
}
#: The reason why a script of Kafka has no corresponding command.
NOT_HERE: Final[dict[str, str]] = {
    "kafka-broker-api-versions": _NO_BROKER,
    "kafka-client-metrics": _NO_BROKER,
    "kafka-cluster": "the cluster's id is in meta.properties of the log directory",
    "kafka-console-share-consumer": _NO_MEMBERS,
    "kafka-delegation-tokens": "nobody logs in here: file permissions decide",
    "kafka-e2e-latency": "kafkalog perf-test measures latencies",
    "kafka-features": "features have no levels here",
    "kafka-leader-election": "a partition has one replica here",
    "kafka-metadata-shell": "kafkalog dump-log --cluster-metadata-decoder shows the metadata log",
    "kafka-reassign-partitions": "a partition has one replica here; kafkalog export copies partitions elsewhere",
    "kafka-replica-verification": "a partition has one replica here; kafkalog verify checks it",
    "kafka-run-class": "no JVM runs here",
    "kafka-server-start": _NO_BROKER,
    "kafka-server-stop": _NO_BROKER,
    "kafka-share-groups": _NO_MEMBERS,
    "kafka-storage": "a log directory needs no formatting: the first kafkalog topics --create, or write, makes it",
    "kafka-streams-application-reset": "kafkalog consumer-groups --reset-offsets, topics --delete do what it does",
    "kafka-streams-groups": _NO_MEMBERS,
    "kafka-verifiable-consumer": "a tool of Kafka's own tests",
    "kafka-verifiable-producer": "a tool of Kafka's own tests",
}

_ONE_REPLICA: Final = "a partition has one replica here, and it is in sync"
_NO_QUOTAS: Final = "no broker runs here that could keep to quotas"
_NO_CLIENT: Final = "there is no client to configure here; leave it away"
_PATH_INSTEAD: Final = "no broker is asked here: --path ROOT, a log directory, stands in place of it"
_START_OFFSET: Final = "--start-offset says enough of a transaction"
#: Advice for options of Kafka's tools that no command here has.
_OPTIONS_NOT_HERE: Final[dict[str, str]] = {
    "--bootstrap-server": _PATH_INSTEAD,
    "--bootstrap-controller": _PATH_INSTEAD,
    "--command-config": _NO_CLIENT,
    "--version": "kafkalog --version prints it",
}
#: Advice for options that a command has only in Kafka.
_OPTIONS_NOT_OF: Final[dict[str, dict[str, str]]] = {
    "configs": {
        **dict.fromkeys(("--user", "--user-defaults", "--client", "--client-defaults"), _NO_QUOTAS),
        **dict.fromkeys(("--ip", "--ip-defaults"), _NO_QUOTAS),
        **dict.fromkeys(("--broker-logger", "--client-metrics"), _NO_BROKER),
        "--group": _NO_MEMBERS,
    },
    "consumer-groups": {"--validate-regex": _NO_MEMBERS},
    "dump-log": {"--remote-log-metadata-decoder": "nothing is on tiered storage here"},
    "topics": {
        "--at-min-isr-partitions": _ONE_REPLICA,
        "--partition-size-limit-per-response": _NO_CLIENT,
        "--replica-assignment": f"{_ONE_REPLICA}; --partitions says how many there are",
        "--topic-id": "--topic names a topic",
        "--topics-with-overrides": "kafkalog configs --entity-type topics --describe lists what topics set",
        "--unavailable-partitions": _ONE_REPLICA,
        "--under-min-isr-partitions": _ONE_REPLICA,
        "--under-replicated-partitions": _ONE_REPLICA,
    },
    "transactions": dict.fromkeys(("--coordinator-epoch", "--producer-epoch", "--producer-id"), _START_OFFSET),
}


def option_advice(command: str, option: str) -> str | None:
    """The advice for a user who passed that option of Kafka's tool to the command; None without advice."""
    why = _OPTIONS_NOT_HERE.get(option) or _OPTIONS_NOT_OF.get(command, {}).get(option)
    return None if why is None else f"{option}: {why}"


def advice(name: str, commands: Iterable[str]) -> str:
    """The advice for a user who entered `name`, which is not one of the commands."""
    script = name.removesuffix(".sh").removesuffix(".bat")
    script = script if script.startswith("kafka-") else f"kafka-{script}"
    if script in COUNTERPARTS:
        return f"Kafka's {script} is kafkalog {COUNTERPARTS[script]}"
    if script in NOT_HERE:
        return f"Kafka's {script} has no counterpart: {NOT_HERE[script]}"
    near = _nearest(name, list(commands))
    guess = f"did you mean {near}? " if near else ""
    return f"there is no command {name!r}: {guess}kafkalog --help lists all"


def _nearest(name: str, commands: Sequence[str]) -> str | None:
    """The command that was probably meant: one with this prefix, a similar one, or one with this part."""
    begun = [command for command in commands if command.startswith(name)]
    if begun:
        return min(begun, key=len)
    near = difflib.get_close_matches(name, commands, n=1)
    if near:
        return near[0]
    by_part = {part: command for command in commands for part in command.split("-")}
    near_parts = difflib.get_close_matches(name, by_part, n=1)
    return by_part[near_parts[0]] if near_parts else None
