"""Metrics of a running broker's directory equal those that the broker itself reports by JMX under the same names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from kafka_processes.java_processes import free_port
from kafka_processes.oracle import Broker, run_tool

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.metrics import collect_metrics

TOPIC = "orders"
BEANS = {
    "Size": "kafka.log:type=Log",
    "NumLogSegments": "kafka.log:type=Log",
    "LogStartOffset": "kafka.log:type=Log",
    "LogEndOffset": "kafka.log:type=Log",
    "LastStableOffsetLag": "kafka.cluster:type=Partition",
}


def told_by_jmx(port: int) -> dict[str, dict[tuple[str, str], float]]:
    """Values of the beans of the topic's logs, by name, then by topic and partition."""
    arguments = ["--jmx-url", f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi", "--one-time"]
    for name, bean in BEANS.items():
        arguments += ["--object-name", f"{bean},name={name},topic={TOPIC},partition=*"]
    done = run_tool("org.apache.kafka.tools.JmxTool", *arguments, "--report-format", "properties")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, dict[tuple[str, str], float]] = {name: {} for name in BEANS}
    for line in done.stdout.splitlines():
        bean, _, value = line.rpartition("=")
        if bean.startswith(tuple(BEANS.values())):
            tags = dict(tag.split("=") for tag in bean.removesuffix(":Value").partition(":")[2].split(","))
            found[tags["name"]][tags["topic"], tags["partition"]] = float(value)
    return found


@pytest.mark.full
def test_metrics_of_running_broker_equal_its_jmx_beans(start_broker: Callable[..., Broker]) -> None:
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
    in_transaction = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "left-open"})
    in_transaction.init_transactions(30)
    in_transaction.begin_transaction()
    for number in range(7):
        in_transaction.produce(TOPIC, b"open", partition=number % 3 // 2)
    assert in_transaction.flush(30) == 0
    broker.wait_for_checkpoint(TOPIC)
    expected = told_by_jmx(port)
    metrics = {each.name: each for each in collect_metrics(LogDir.open(broker.data).root, now_ms=0)}
    assert set(expected["Size"]) == {(TOPIC, "0"), (TOPIC, "1")}
    for name in BEANS:
        ours = {tags: value for tags, value in metrics[name].values.items() if tags[0] == TOPIC}
        assert ours == expected[name]
    assert max(expected["NumLogSegments"].values()) > 1
    assert expected["LastStableOffsetLag"] == {(TOPIC, "0"): 5, (TOPIC, "1"): 2}
