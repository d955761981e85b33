"""The wheel without extras, in an environment that has no Spark: what works, and what pip leaves as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from distributions import Distributions, Environment, kernels_base, lean_environment, pip_install, stand_in
from kafka_processes.clients import consume, producing
from kafka_processes.server_processes import serving

import pyspark_kafkalog

RECORDS = 100
#: Packages that extras install.
LEFT_OUT = ("pyspark", "delta", "pandas", "grpc", "obstore", "cryptography", "re2", "matplotlib", "IPython")
SPARK_OF_PLATFORM = "4.3.0"


@pytest.fixture(scope="module")
def lean(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = lean_environment(tmp_path_factory.mktemp("lean") / "venv", distributions.wheel)
    pip_install(made, "--no-index", str(distributions.wheel))
    return made


@pytest.fixture(scope="module")
def root(lean: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with the records of a client, written by a server of the environment."""
    path = tmp_path_factory.mktemp("served") / "log"
    lean.python(
        f"from pyspark_kafkalog import LogDir; LogDir.create({str(path)!r}).create_topic('orders', partitions=2)"
    )
    with serving(path, program=program(lean)) as server:
        with producing(server.bootstrap) as producer:
            for number in range(RECORDS):
                producer.produce("orders", key=str(number), value=f"v{number}")
        assert len(consume(server.bootstrap, "orders")) == RECORDS
    return path


def program(lean: Environment) -> tuple[str, ...]:
    """The environment's command, without the variables by which the tests' Python finds the repository."""
    return ("env", "-u", "PYTHONPATH", f"NUMBA_CACHE_DIR={kernels_base()}", f"{lean.path}/bin/kafkalog")


def test_plain_install_brings_neither_spark_nor_other_optional_packages(lean: Environment) -> None:
    found = lean.python(f"import importlib.util as u; print([name for name in {LEFT_OUT} if u.find_spec(name)])")
    assert found.strip() == "[]"
    assert "No broken requirements found" in lean.run("python", "-m", "pip", "check")


def test_command_and_module_print_help_without_spark(lean: Environment) -> None:
    assert lean.run("kafkalog", "--help") == lean.run("python", "-m", "pyspark_kafkalog", "--help")
    assert "usage: kafkalog serve" in lean.run("kafkalog", "serve", "--help")


def test_log_dir_appends_and_reads_without_spark(lean: Environment, tmp_path: Path) -> None:
    code = (
        "import pyarrow as pa\nfrom pyspark_kafkalog import LogDir\n"
        f"log_dir = LogDir.open_or_create({str(tmp_path / 'log')!r})\n"
        "log_dir.append('t', pa.table({'key': ['a', 'b'], 'value': ['1', '2']}))\n"
        "print(log_dir.read('t', isolation='read_committed').num_rows)"
    )
    assert lean.python(code).split()[-1] == "2"


def test_clients_write_to_and_read_from_server_without_spark(lean: Environment, root: Path) -> None:
    counted = f"from pyspark_kafkalog import LogDir; print(LogDir.open({str(root)!r}).read('orders').num_rows)"
    assert lean.python(counted).split()[-1] == str(RECORDS)


def test_follower_copies_from_server_without_spark(lean: Environment, root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with serving(root, program=program(lean)) as server:
        lean.run("kafkalog", "follow", "--from", server.bootstrap, "--path", str(copy), "--topic", "orders", "--once")
    counted = f"from pyspark_kafkalog import LogDir; print(LogDir.open({str(copy)!r}).read('orders').num_rows)"
    assert lean.python(counted).split()[-1] == str(RECORDS)


@pytest.mark.all_cases
@pytest.mark.parametrize("job", ["retention", "log-cleaner", "merge-segments", "reindex", "verify"])
def test_maintenance_runs_in_its_process_without_spark(job: str, lean: Environment, root: Path) -> None:
    lines = lean.run("kafkalog", job, "--path", str(root), "--topic", "orders", "--output", "json").splitlines()
    assert {json.loads(line)["topic"] for line in lines} == {"orders"}


def test_job_on_spark_names_the_extra_in_one_line(lean: Environment, root: Path) -> None:
    exit_code, _, err = lean.try_to("kafkalog", "retention", "--path", str(root), "--spark")
    assert exit_code == 1
    assert err.splitlines()[-1].endswith("run pip install 'pyspark_kafkalog[spark]'")
    assert "Traceback" not in err


def test_install_leaves_spark_of_platform_as_it_is(distributions: Distributions, tmp_path: Path) -> None:
    spark = stand_in(tmp_path, "pyspark", SPARK_OF_PLATFORM)
    platform = lean_environment(tmp_path / "venv", distributions.wheel, spark)
    before = platform.installed()
    assert ("pyspark", SPARK_OF_PLATFORM) in before
    for extra in ("", "[spark]"):
        pip_install(platform, "--no-index", f"pyspark_kafkalog{extra} @ {distributions.wheel.as_uri()}")
        assert platform.installed() - before == {("pyspark_kafkalog", pyspark_kafkalog.__version__)}
        assert before <= platform.installed()
