"""Clients in Python, Go, JavaScript and C create topics, produce, commit and abort transactions, and read in groups.

The programs assert what they read; each prints a count at its end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kafka_processes.client_programs import PROGRAMS, go_program, node_modules, python_with_clients, run_client
from kafka_processes.s3_proxy import S3Proxy
from kafka_processes.server_processes import serving


@pytest.mark.parametrize(("program", "printed"), [("kafka_python_client", "301"), ("aiokafka_client", "201")])
def test_python_client_reads_what_it_committed(bootstrap: str, program: str, printed: str) -> None:
    said = run_client([python_with_clients(), PROGRAMS / f"{program}.py", bootstrap])
    assert said == f"{printed} values\n"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_confluent_kafka_reads_what_it_committed(bootstrap: str, protocol: str) -> None:
    said = run_client([sys.executable, PROGRAMS / "confluent_kafka_client.py", bootstrap, protocol])
    assert said == "301 values\n"


@pytest.mark.parametrize(
    ("program", "printed"),
    [("kafkago", "100 values, the group is Empty"), ("franz", "300 values, 300 copied"), ("sarama", "600 values")],
)
def test_go_client_reads_what_it_committed(bootstrap: str, tmp_path: Path, program: str, printed: str) -> None:
    assert run_client([go_program(program, tmp_path), bootstrap]) == f"{printed}\n"


def test_kafkajs_reads_what_it_committed(bootstrap: str) -> None:
    said = run_client(["node", PROGRAMS / "kafkajs_client.js", bootstrap], NODE_PATH=str(node_modules()))
    assert said == "300 values, offsets of 3 partitions\n"


def test_go_client_copies_in_transactions_at_a_log_in_an_object_store(
    s3_proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = s3_proxy.new_location().below("log")
    s3_proxy.set_variables(monkeypatch)
    with serving(location.url) as server:
        assert run_client([go_program("franz", tmp_path), server.bootstrap]) == "300 values, 300 copied\n"
        assert run_client([go_program("kafkago", tmp_path), server.bootstrap]) == "100 values, the group is Empty\n"
