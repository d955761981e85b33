"""The examples of Kafka's documentation, and some more, through our tools and Kafka's own: the same answer.

One broker serves Kafka's tools; ours read its directory while it runs. Each write goes through both.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from kafka_processes.clients import consume, producing
from kafka_processes.oracle import CONFIG_COMMAND, Broker, dump_log, run_tool

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.tools.main import main

#: Starts brokers, or Kafka's tools many times: the full tier alone.
pytestmark = pytest.mark.full

TOOLS: Final = "org.apache.kafka.tools."
CONSUMER: Final = TOOLS + "consumer.ConsoleConsumer"
START_MS: Final = 1_700_000_000_000
EVENTS: Final = "This is my first event\nThis is my second event\n"
LINES: Final = (
    "h1:v1,h2:v2\tkey\tvalue\n"
    "h1:,h2:N\tN\tN\n"
    "N\t\t\n"
    "a:b:c,d:e,,\tk\tv\tw\r\n"
    "ä:ö\tü\t€ß\n"
)  # fmt: skip
LINE_PROPERTIES: Final = ("parse.headers=true", "parse.key=true", "null.marker=N")
PRINTED: Final = ("print.headers=true", "print.key=true", "print.partition=true", "print.offset=true")
EVERYTHING: Final = (*PRINTED, "print.timestamp=true", "print.epoch=true", "print.delivery=true", "key.separator=|")
COMMITTED: Final = 20


def properties(names: Sequence[str], option: str = "--formatter-property") -> tuple[str, ...]:
    return tuple(argument for name in names for argument in (option, name))


def ours(command: str, path: Path, *arguments: str, stdin: str = "") -> str:
    """What `kafkalog` prints."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        if stdin:
            given = path.with_name("stdin")
            given.write_text(stdin, newline="")
            patch.setattr("sys.stdin", stack.enter_context(given.open()))
        assert main([command, "--path", str(path), *arguments]) == 0
    return out.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]


@dataclass(frozen=True)
class Example:
    """One question: our command with its arguments, and the class of Kafka's tool, which takes the same ones."""

    command: str
    tool: str
    arguments: tuple[str, ...]
    normalize: Callable[[str], Any] = str


def sorted_json(text: str) -> list[Any]:
    """Each JSON value in the text, whatever stands between them."""
    decoder, at, found = json.JSONDecoder(), 0, []
    while (at := text.find("{", at)) >= 0:
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


def log_dir_sizes(text: str) -> Any:
    (tree,) = sorted_json(text)
    partitions = tree["brokers"][0]["logDirs"][0]["partitions"]
    return text.splitlines()[:2], [tree["version"], tree["brokers"][0]["logDirs"][0]["error"]], sorted(
        (each["partition"], each["size"], each["offsetLag"], each["isFuture"]) for each in partitions
    )  # fmt: skip


def without_duration(text: str) -> list[list[str]]:
    """The cells of a table but for how long a transaction has been open, which goes on."""
    header, *rows = [[cell.strip() for cell in line.split("\t")] for line in text.splitlines()]
    columns = [at for at, name in enumerate(header) if "Duration" not in name]
    return sorted([row[at] for at in columns] for row in [header, *rows])


def transaction_lines(text: str) -> list[str]:
    return sorted(text.splitlines())


def topics_own_configs(text: str) -> list[list[str]]:
    """The description's cells; of the configurations those that the topic sets, in order."""
    header, *partitions = text.splitlines()
    *cells, configs = header.split("\t")
    own = sorted(each for each in configs.removeprefix("Configs: ").split(",") if "min.insync" not in each)
    return [[*cells, *own], *(line.split("\t") for line in partitions)]


def without_defaults(text: str) -> list[str]:
    """What the topic sets; what the broker's server.properties would say otherwise, its directory does not tell."""
    return [re.sub(r", (DYNAMIC|STATIC|DEFAULT)[A-Z_]*_CONFIG:[^,}]*", "", line) for line in text.splitlines()]


OFFSETS = [
    ("--topic", "quickstart-events"),
    ("--topic-partitions", "orders:0-2,quick.*", "--time", "earliest"),
    ("--topic", "orders", "--time", "max-timestamp"),
    ("--topic", "orders", "--partitions", "0,2", "--time", str(START_MS + 55)),
    ("--exclude-internal-topics", "--time", "-5"),
]
FROM_START = ("--from-beginning", "--timeout-ms", "10000", "--max-messages")
EXAMPLES = {
    "describe": Example(
        "topics", TOOLS + "TopicCommand", ("--describe", "--topic", "quickstart-events"), topics_own_configs
    ),
    "list": Example("topics", TOOLS + "TopicCommand", ("--list",)),
    "configs": Example(
        "configs",
        CONFIG_COMMAND,
        ("--entity-type", "topics", "--entity-name", "orders", "--describe"),
        without_defaults,
    ),
    **{f"offsets {at}": Example("get-offsets", TOOLS + "GetOffsetShell", each) for at, each in enumerate(OFFSETS)},
    "log dirs": Example(
        "log-dirs", TOOLS + "LogDirsCommand", ("--describe", "--topic-list", "quickstart-events,orders"), log_dir_sizes
    ),
    "events": Example("console-consumer", CONSUMER, ("--topic", "quickstart-events", *FROM_START, "2")),
    "partition": Example(
        "console-consumer",
        CONSUMER,
        ("--topic", "orders", "--partition", "1", "--offset", "3", "--max-messages", "5", *properties(EVERYTHING)),
    ),
    "numbers": Example(
        "console-consumer",
        CONSUMER,
        (
            *("--topic", "numbers", *FROM_START, "3", "--formatter-property", "print.key=true"),
            *("--key-deserializer", "org.apache.kafka.common.serialization.LongDeserializer"),
            *("--value-deserializer", "org.apache.kafka.common.serialization.DoubleDeserializer"),
        ),
    ),
    "committed": Example(
        "console-consumer",
        CONSUMER,
        (
            "--topic",
            "payments",
            "--isolation-level",
            "read_committed",
            *FROM_START,
            str(COMMITTED),
            *properties(PRINTED),
        ),
    ),
    "group offsets": Example(
        "console-consumer",
        CONSUMER,
        (
            *("--topic", "__consumer_offsets", *FROM_START, "1"),
            *("--formatter", "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"),
        ),
        sorted_json,
    ),
    "transaction log": Example(
        "console-consumer",
        CONSUMER,
        (
            *("--topic", "__transaction_state", *FROM_START, "3"),
            *("--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"),
        ),
        sorted_json,
    ),
    "transactions": Example("transactions", TOOLS + "TransactionsCommand", ("list",), transaction_lines),
    "transaction": Example(
        "transactions", TOOLS + "TransactionsCommand", ("describe", "--transactional-id", "left"), without_duration
    ),
    "producers": Example(
        "transactions",
        TOOLS + "TransactionsCommand",
        ("describe-producers", "--topic", "payments", "--partition", "0"),
        transaction_lines,
    ),
    "hanging": Example("transactions", TOOLS + "TransactionsCommand", ("find-hanging", "--topic", "payments")),
}


@dataclass(frozen=True)
class Live:
    """A running broker, what Kafka's tools answered, and a producer that holds a transaction open."""

    broker: Broker
    answers: Mapping[str, str]
    quorum: Mapping[str, str]
    holder: Any
    open_since: int


def fill(broker: Broker) -> tuple[Any, int]:
    from confluent_kafka import Consumer, Producer, TopicPartition

    for topic, partitions in (("quickstart-events", 1), ("orders", 3), ("numbers", 1), ("payments", 1), ("lines", 1)):
        broker.create_topic(topic, partitions, {"max.message.bytes": "128000"})
    with producing(broker.bootstrap) as producer:
        for number in range(90):
            producer.produce(
                "orders",
                partition=number % 3,
                key=None if number % 7 == 0 else f"k{number}",
                value=None if number % 5 == 0 else f"v{number}".encode() * (number % 4),
                timestamp=START_MS + number * 37 % 90,
                headers=[("h", b"1"), ("n", None)] if number % 2 else None,
            )
        for number in range(3):
            key, value = struct.pack(">q", -number), struct.pack(">d", number / 3 + 10 ** (number * 4))
            producer.produce("numbers", key=key, value=value)
    holder = None
    for name, end in (("kept", "commit"), ("dropped", "abort"), ("kept", "commit"), ("left", None)):
        # On a busy machine the tests take longer than the default of a minute, after which the broker aborts it.
        settings = {"transactional.id": name, "transaction.timeout.ms": 600_000}
        holder = Producer({"bootstrap.servers": broker.bootstrap, **settings})
        holder.init_transactions(30)
        holder.begin_transaction()
        for number in range(10):
            holder.produce("payments", value=f"{name} {number}".encode(), partition=0)
        holder.flush(30)
        if end is not None:
            getattr(holder, f"{end}_transaction")(30)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("orders", 1, 7, "mine")], asynchronous=False)
    consumer.close()
    open_since = max(each.offset for each in consume(broker.bootstrap, "payments")) - 9
    return holder, open_since


@pytest.fixture(scope="module")
def live(start_broker: Callable[..., Broker]) -> Live:
    broker = start_broker({"replica.high.watermark.checkpoint.interval.ms": "200"})
    holder, open_since = fill(broker)
    server = ("--bootstrap-server", broker.bootstrap)
    events = run_tool(TOOLS + "ConsoleProducer", *server, "--topic", "quickstart-events", stdin=EVENTS)
    assert events.returncode == 0, events.stderr

    def ask(example: Example) -> str:
        done = run_tool(example.tool, *server, *example.arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask_quorum(what: str) -> str:
        return run_tool(TOOLS + "MetadataQuorumCommand", *server, "describe", what).stdout

    with ThreadPoolExecutor(2) as pool:
        answers = dict(zip(EXAMPLES, pool.map(ask, EXAMPLES.values()), strict=True))
        what = ("--status", "--replication")
        quorum = dict(zip(what, pool.map(ask_quorum, what), strict=True))
    time.sleep(0.5)  # for the checkpoint of high watermarks
    return Live(broker, answers, quorum, holder, open_since)


@pytest.mark.parametrize("name", EXAMPLES)
def test_answer_equals_kafkas(live: Live, name: str) -> None:
    example = EXAMPLES[name]
    theirs = example.normalize(live.answers[name])
    assert example.normalize(ours(example.command, live.broker.data, *example.arguments)) == theirs
    assert theirs or name in ("offsets 4",)


def test_quorum_of_own_root_is_described_in_kafkas_form(live: Live, tmp_path: Path) -> None:
    LogDir.create(tmp_path / "root")
    theirs, own = (
        [re.sub(r"[0-9A-Za-z_-]{22}|\d+", "X", line) for line in text.splitlines()]
        for text in (
            re.sub(r', "endpoints": \[[^]]*\]', "", live.quorum["--status"]),
            ours("metadata-quorum", tmp_path / "root", "describe", "--status"),
        )
    )
    assert own == theirs
    theirs_rows, own_rows = (
        [re.sub(r"[0-9A-Za-z_-]{22}|\d+ *", "X", line) for line in text.splitlines()]
        for text in (
            live.quorum["--replication"],
            ours("metadata-quorum", tmp_path / "root", "describe", "--replication"),
        )
    )
    assert [row.split("\t") for row in own_rows[1:]] == [row.split("\t") for row in theirs_rows[1:]]
    assert [cell.strip() for cell in own_rows[0].split("\t")] == [cell.strip() for cell in theirs_rows[0].split("\t")]


def test_quorum_of_broker_is_described_as_by_kafka(live: Live) -> None:
    """No-op records keep coming, so ours lies between two answers of Kafka's tool."""
    own = ours("metadata-quorum", live.broker.data, "describe", "--status")
    (row,) = sorted_json(ours("metadata-quorum", live.broker.data, "describe", "--replication", "--output", "json"))
    server = ("--bootstrap-server", live.broker.bootstrap)
    later = run_tool(TOOLS + "MetadataQuorumCommand", *server, "describe", "--status").stdout

    def high_watermark(text: str) -> int:
        return int(re.findall(r"^HighWatermark: +(\d+)$", text, re.MULTILINE)[0])

    for theirs in (live.quorum["--status"], later):
        assert own == re.sub(r"(?<=\nHighWatermark:)( +)\d+", rf"\g<1>{high_watermark(own)}", theirs)
    assert high_watermark(live.quorum["--status"]) <= high_watermark(own) <= row["LogEndOffset"]
    assert high_watermark(own) <= high_watermark(later)
    cells = [cell.strip() for cell in live.quorum["--replication"].splitlines()[1].split("\t")]
    assert [str(row["NodeId"]), row["DirectoryId"], str(row["Lag"]), row["Status"]] == [
        cells[at] for at in (0, 1, 3, 6)
    ]
    assert int(cells[2]) <= row["LogEndOffset"]


def test_console_producer_makes_same_records_as_kafkas(live: Live, tmp_path: Path) -> None:
    server = ("--bootstrap-server", live.broker.bootstrap)
    given = ("--topic", "lines", *properties(LINE_PROPERTIES, "--reader-property"))
    done = run_tool(TOOLS + "ConsoleProducer", *server, *given, stdin=LINES)
    assert done.returncode == 0, done.stderr
    ours("console-producer", tmp_path / "root", *given, stdin=LINES)
    theirs = [(each.key, each.value, each.headers) for each in consume(live.broker.bootstrap, "lines")]
    own = [
        (row["key"], row["value"], tuple((each["key"], each["value"]) for each in row["headers"]))
        for row in LogDir.open(tmp_path / "root").read("lines").to_pylist()
    ]
    assert own == theirs
    assert len(theirs) == 5


def test_perf_test_prints_lines_in_kafkas_form(live: Live, tmp_path: Path) -> None:
    live.broker.create_topic("perf", 1)
    shape = ("--topic", "perf", "--num-records", "1200", "--record-size", "1024", "--throughput", "-1")
    server = ("--command-property", f"bootstrap.servers={live.broker.bootstrap}")
    read = ("--topic", "perf", "--num-records", "1200")
    theirs = run_tool(TOOLS + "ProducerPerformance", *shape, *server).stdout
    theirs += run_tool(TOOLS + "ConsumerPerformance", "--bootstrap-server", live.broker.bootstrap, *read).stdout
    own = ours("perf-test", tmp_path / "root", "producer", *shape)
    own += ours("perf-test", tmp_path / "root", "consumer", *read)
    assert [re.sub(r"\d+", "0", line) for line in own.splitlines()] == [
        re.sub(r"\d+", "0", line) for line in theirs.splitlines()
    ]


def test_abort_writes_same_marker_as_kafka_and_broker_serves_export(live: Live, tmp_path: Path) -> None:
    """Last, as it stops the broker: the same transaction is aborted in a copy by us, then by Kafka's own tool."""
    abort = ("abort", "--topic", "payments", "--partition", "0", "--start-offset", str(live.open_since))
    live.holder.purge()
    live.broker.stop()
    shutil.copytree(live.broker.data, tmp_path / "copy")
    LogDir.adopt(tmp_path / "copy")
    ours("transactions", tmp_path / "copy", *abort)
    live.broker.start()
    done = run_tool(TOOLS + "TransactionsCommand", "--bootstrap-server", live.broker.bootstrap, *abort)
    assert done.returncode == 0, done.stderr
    served = [each.value for each in consume(live.broker.bootstrap, "payments", isolation="read_committed")]
    own = LogDir.open(tmp_path / "copy")
    assert own.read("payments", isolation="read_committed")["value"].to_pylist() == served
    live.broker.stop()

    def batches(root: Path) -> tuple[list[str], int]:
        """The dump, without what varies, and the producer epoch of the last marker."""
        text = dump_log(sorted((root / "payments-0").glob("*.log")), "--deep-iteration").stdout
        *_, marker = re.finditer(r"producerEpoch: (\d+)(?= .*isControl: true)", text)
        text = text[: marker.start()] + text[marker.end() :]
        # The tool writes the coordinator's epoch that the producer has; an adopted root is its coordinator itself.
        varying = r"(CreateTime|crc|partitionLeaderEpoch|coordinatorEpoch): \d+|^Dumping.*"
        return [re.sub(varying, "", line) for line in text.splitlines()], int(marker[1])

    kafkas, kafkas_epoch = batches(live.broker.data)
    # The coordinator's state is there, so the epoch rises as when a transaction times out: its producer is fenced.
    assert batches(tmp_path / "copy") == (kafkas, kafkas_epoch + 1)
    theirs, ours_too = (
        (root / "payments-0" / "00000000000000000000.txnindex").read_bytes()
        for root in (live.broker.data, tmp_path / "copy")
    )
    assert ours_too == theirs

    # and back to the broker: our copy's topic in the place of its own, and a topic of ours beside it
    ours("export", tmp_path / "copy", "--to", str(live.broker.data), "--topic", "payments", "--overwrite")
    own_root = LogDir.create(tmp_path / "own")
    own_root.append("quickstart-events", pa.table({"value": ["from", "here"]}))
    ours("export", tmp_path / "own", "--to", str(live.broker.data), "--overwrite")
    broker = live.broker.start()
    exported = [each.value for each in consume(broker.bootstrap, "payments", isolation="read_committed")]
    assert exported == served
    assert [each.value for each in consume(broker.bootstrap, "quickstart-events")] == [b"from", b"here"]
    with producing(broker.bootstrap) as producer:
        producer.produce("quickstart-events", value=b"and there")
    assert [each.offset for each in consume(broker.bootstrap, "quickstart-events")] == [0, 1, 2]
    assert [each.value for each in consume(broker.bootstrap, "orders")]
