"""The blocks of README.md and docs/ run in their order, on topics of several partitions, and print what is shown."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.certificates import Authority, common_name
from builders.root_places import forget, memory_root
from builders.tiered_fixtures import TieredFixture
from documented_runs import Reader, pages_to_run, prepared_home
from kafka_processes.java_processes import free_port
from kafka_processes.oracle import write_tool_scripts
from kafka_processes.s3_proxy import S3Proxy
from kafka_processes.served import serve
from pyspark.sql import SparkSession

from pyspark_kafkalog import LogDir, register

pytestmark = pytest.mark.all_cases

#: What takes more than seconds, or needs Kafka's tools or an object store that executors reach.
FULL = ("MIGRATING.md",)
#: Pages with a test of their own.
OTHERS = ("FOLLOWING.md", "OBJECT-STORES.md", "SERVER.md")
NAMES = [
    pytest.param(name, marks=pytest.mark.full) if name in FULL else name
    for name in pages_to_run(delta=False)
    if name not in OTHERS
]


@pytest.fixture
def reader(tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Iterator[Reader]:
    home = prepared_home(tmp_path)
    reader = Reader(home, capsys, lambda: request.getfixturevalue("spark"), {"/mnt/log": "/data/log"})
    yield reader
    reader.close()


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_page_run_in_order(name: str, reader: Reader) -> None:
    reader.work_through(name)


def test_blocks_about_following_run_in_order(reader: Reader) -> None:
    copy = memory_root()
    with serve(shutil.copytree(reader.home / "data" / "log", reader.home / "leader")) as address:
        reader.places |= {"broker1:9092,broker2:9092": address, "s3://bucket/copy": copy}
        reader.work_through("FOLLOWING.md")
    forget(copy)
    assert LogDir.open(reader.home / "data" / "copy").topics() == ("__consumer_offsets", "orders", "payments")


@pytest.mark.full
def test_blocks_about_servers_run_in_order(reader: Reader) -> None:
    """With Kafka's own tools, and servers that are processes."""
    shutil.rmtree(reader.home / "data" / "log")
    write_tool_scripts(reader.home / "bin")
    Authority(reader.home).sign("server", common_name("log.example.com"))
    shutil.copytree(TieredFixture("tiered").remote, reader.home / "mnt" / "tier")
    plain, secure = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    reader.places |= {"127.0.0.1:9092": plain, "0.0.0.0:9093": secure, "s3://bucket/tiered": "/mnt/tier"}
    reader.work_through("SERVER.md")


@pytest.mark.full
def test_blocks_about_object_stores_run_in_order(
    reader: Reader, s3_proxy: S3Proxy, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = s3_proxy.options()
    place = s3_proxy.new_location().url
    settings = {"endpoint": "storeEndpoint", "access.key": "storeAccessKey", "secret.key": "storeSecretKey"}
    for name, option in settings.items():
        spark.conf.set(f"spark.hadoop.fs.s3a.{name}", options[option])
    register(spark)
    for name, option in (
        ("ENDPOINT_URL", "Endpoint"),
        ("ACCESS_KEY_ID", "AccessKey"),
        ("SECRET_ACCESS_KEY", "SecretKey"),
    ):
        monkeypatch.setenv(f"AWS_{name}", options[f"store{option}"])
    monkeypatch.setenv("AWS_REGION", options["storeRegion"])
    shutil.rmtree(reader.home / "var" / "lib" / "kafka" / "data")
    shutil.copytree(TieredFixture("tiered").log_dir, reader.home / "var" / "lib" / "kafka" / "data")
    shutil.copytree(TieredFixture("tiered").remote, reader.home / "mnt" / "tier")
    reader.places |= {f"s3://bucket/{name}": f"{place}/{name}" for name in ("log", "segments")}
    reader.places["s3://bucket/tiered"] = "/mnt/tier"
    rows = spark.range(20).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    reader.names |= {"df": rows, "access_key": options["storeAccessKey"], "secret_key": options["storeSecretKey"]}
    reader.work_through("OBJECT-STORES.md")
    for name in settings:
        spark.conf.unset(f"spark.hadoop.fs.s3a.{name}")
