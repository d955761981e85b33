"""The wheel and the sdist, installed as a user installs them, in an environment that has nothing else of this project.

The dependencies come from the environment of the tests, by a path entry: they are what pip would install again.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from distributions import Distributions, Environment, environment, run, sources, wheel_metadata
from documented import PAGES
from repository import REPOSITORY

import pyspark_kafkalog

COUNT_BY_SPARK = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(3).selectExpr("CAST(id AS STRING) AS value").write.format("kafkalog").mode("append").option(
    "topic", "orders").save("{root}")
print("rows", spark.read.format("kafkalog").option("subscribe", "orders").load("{root}").count())
"""


@pytest.fixture(scope="module")
def with_wheel(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(tmp_path_factory.mktemp("with-wheel") / "venv", str(distributions.wheel))


def test_wheel_holds_types_schemas_jobs_conf_and_pages(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as archive:
        names = set(archive.namelist())
    data = f"pyspark_kafkalog-{pyspark_kafkalog.__version__}.data/data/share/pyspark_kafkalog"
    assert "pyspark_kafkalog/py.typed" in names
    for package in ("metadata/messages", "protocol"):
        assert any(name.startswith(f"pyspark_kafkalog/{package}/schemas/") for name in names)
    for folder in ("jobs", "conf", "notebooks"):
        kept = subprocess.run(["git", "-C", str(REPOSITORY), "ls-files", "-co", "--exclude-standard", folder],
                              check=True, capture_output=True, text=True).stdout.split()  # fmt: skip
        assert len(kept) >= 8
        assert {f"{data}/{name}" for name in kept} <= names
    assert {f"{data}/{page.relative_to(REPOSITORY)}" for page in PAGES} <= names


def test_description_links_no_file_that_a_package_index_does_not_have(distributions: Distributions) -> None:
    description = wheel_metadata(distributions.wheel).get_payload()
    assert "troubleshooting" in description
    assert not re.search(r"\]\((?!https?://)", description)


def test_wheel_states_licence_by_its_spdx_name_and_linux_as_platform(distributions: Distributions) -> None:
    metadata = wheel_metadata(distributions.wheel)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Operating System :: POSIX :: Linux" in metadata.get_all("Classifier", [])


def test_wheel_holds_only_package_and_its_data(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as archive:
        tops = {name.split("/")[0].split("-")[0] for name in archive.namelist()}
    assert tops == {"pyspark_kafkalog"}


@pytest.mark.full
def test_wheel_is_found_by_spark_in_fresh_environment(with_wheel: Environment, tmp_path: Path) -> None:
    assert "rows 3" in with_wheel.python(COUNT_BY_SPARK.format(root=tmp_path / "log"))


def test_installed_package_comes_from_wheel_and_is_typed(with_wheel: Environment) -> None:
    (site_packages,) = with_wheel.path.glob("lib/*/site-packages")
    found = with_wheel.python("import pyspark_kafkalog; print(pyspark_kafkalog.__file__)")
    assert Path(found.strip()) == site_packages / "pyspark_kafkalog" / "__init__.py"
    assert (site_packages / "pyspark_kafkalog" / "py.typed").exists()


def test_installed_command_prints_help_and_version(with_wheel: Environment) -> None:
    assert "usage: kafkalog" in with_wheel.run("kafkalog", "--help")
    assert with_wheel.run("kafkalog", "--version").strip() == f"kafkalog {pyspark_kafkalog.__version__}"


@pytest.mark.full
def test_sdist_installs_same_package(distributions: Distributions, tmp_path: Path) -> None:
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(distributions.sdist)])
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as from_sdist, zipfile.ZipFile(distributions.wheel) as wheel:
        assert sorted(from_sdist.namelist()) == sorted(wheel.namelist())
    with tarfile.open(distributions.sdist) as archive:
        assert any(name.endswith("/LICENSE") for name in archive.getnames())


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    home = tmp_path_factory.mktemp("editable")
    return environment(home / "venv", "--editable", str(sources(home / "source")))


@pytest.mark.full
def test_plain_editable_install_is_listed_where_spark_looks(editable: Environment) -> None:
    source = editable.path.parent / "source"
    assert str(source) in editable.python("import pyspark_kafkalog; print(pyspark_kafkalog.__file__)")
    listed = "import pkgutil; print(*(each.name for each in pkgutil.iter_modules()))"  # as Spark's lookup does
    assert "pyspark_kafkalog" in editable.python(listed).split()


@pytest.mark.full
def test_plain_editable_install_is_found_by_spark(editable: Environment, tmp_path: Path) -> None:
    assert "rows 3" in editable.python(COUNT_BY_SPARK.format(root=tmp_path / "log"))
