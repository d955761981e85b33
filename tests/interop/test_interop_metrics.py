"""Metrics of a running broker's directory that differ from what the broker itself tells by JMX under the same names."""

from __future__ import annotations

import socket
from collections.abc import Callable

from confluent_kafka import Producer
from kafka_oracle import Broker, run_tool

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.metrics import collect_metrics

TOPIC = "orders"
NAMES = ("Size", "NumLogSegments", "LogStartOffset", "LogEndOffset")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def told_by_jmx(port: int) -> dict[str, dict[tuple[str, str], float]]:
    """Values of the beans of the topic's logs, by name, then by topic and partition."""
    arguments = ["--jmx-url", f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi", "--one-time"]
    for name in NAMES:
        arguments += ["--object-name", f"kafka.log:type=Log,name={name},topic={TOPIC},partition=*"]
    done = run_tool("org.apache.kafka.tools.JmxTool", *arguments, "--report-format", "properties")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, dict[tuple[str, str], float]] = {name: {} for name in NAMES}
    for line in done.stdout.splitlines():
        bean, _, value = line.rpartition("=")
        if bean.startswith("kafka.log:type=Log"):
            tags = dict(tag.split("=") for tag in bean.removesuffix(":Value").partition(":")[2].split(","))
            found[tags["name"]][tags["topic"], tags["partition"]] = float(value)
    return found


def test_a_running_brokers_logs_are_told_as_by_its_own_beans(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker()
    broker.stop()
    port = free_port()
    jmx = "-Dcom.sun.management.jmxremote"
    broker.java_options = (
        *broker.java_options,
        f"{jmx}.port={port}",
        f"{jmx}.rmi.port={port}",
        f"{jmx}.host=127.0.0.1",
        f"{jmx}.authenticate=false",
        f"{jmx}.ssl=false",
        "-Djava.rmi.server.hostname=127.0.0.1",
    )
    broker.start()
    broker.create_topic(TOPIC, 2, {"segment.bytes": "1048576"})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 16384})
    for number in range(3000):
        producer.produce(TOPIC, b"x" * 1000, partition=number % 3 // 2)
    assert producer.flush(30) == 0
    expected = told_by_jmx(port)
    metrics = {each.name: each for each in collect_metrics(LogDir.open(broker.data), now_ms=0)}
    assert set(expected["Size"]) == {(TOPIC, "0"), (TOPIC, "1")}
    for name in NAMES:
        ours = {tags: value for tags, value in metrics[name].values.items() if tags[0] == TOPIC}
        assert ours == expected[name]
    assert max(expected["NumLogSegments"].values()) > 1
