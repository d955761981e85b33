"""The client checks that Kafka ships pass at this package's server; kcat, of an old librdkafka, reads and writes.

make test-clients runs many more clients (tests/clients).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from kafka_processes.client_programs import run_client
from kafka_processes.oracle import run_tool
from kafka_processes.served import serve

from pyspark_kafkalog.server.config import Address, ServerConfig

TOOLS = "org.apache.kafka.tools."
CAPABILITIES = (
    "offsets-for-times-supported",
    "cluster-id-supported",
    "create-topics-supported",
    "describe-acls-supported",
    "describe-configs-supported",
    "idempotent-producer-supported",
)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(
        tmp_path_factory.mktemp("served") / "log", ServerConfig(listen=Address("127.0.0.1", 0), flush="os")
    ) as found:
        yield found


def test_kafkas_client_compatibility_test_succeeds(bootstrap: str) -> None:
    created = run_tool(TOOLS + "TopicCommand", "--bootstrap-server", bootstrap, "--create", "--topic", "checked")
    assert created.returncode == 0, created.stderr
    arguments = ["--bootstrap-server", bootstrap, "--topic", "checked", "--num-cluster-nodes", "1"]
    for each in CAPABILITIES:
        arguments += [f"--{each}", "true"]
    # Since Kafka 0.10.1 a record that is larger than a Fetch asks for is returned all the same.
    arguments += ["--expect-record-too-large-exception", "false"]
    done = run_tool(TOOLS + "ClientCompatibilityTest", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "SUCCESS."


def test_kcat_reads_what_it_wrote_in_every_codec_and_in_a_transaction(bootstrap: str) -> None:
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("no kcat (scripts/bootstrap.sh kcat)")
    lines = "".join(f"k{i}=v{i}\n" for i in range(100))
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        run_client([kcat, "-q", "-b", bootstrap, "-P", "-t", "cats", "-K=", "-z", codec], stdin=lines)
    run_client(
        [kcat, "-q", "-b", bootstrap, "-P", "-t", "cats", "-K=", "-X", "transactional.id=kcat"], stdin="k=committed\n"
    )
    read = [kcat, "-q", "-b", bootstrap, "-C", "-t", "cats", "-o", "beginning", "-e", "-f", "%k=%s\\n"]
    assert run_client([*read, "-X", "isolation.level=read_committed"]) == 5 * lines + "k=committed\n"
    # In a group, until each partition's end.
    grouped = run_client([kcat, "-q", "-b", bootstrap, "-e", "-o", "beginning", "-G", "readers", "cats"])
    assert len(grouped.splitlines()) == 501
    assert run_client([kcat, "-q", "-b", bootstrap, "-Q", "-t", "cats:0:0"]) == "cats [0] offset 0\n"
