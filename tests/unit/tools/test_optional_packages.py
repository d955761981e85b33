"""Without packages that extras install: what works does not import them, and what needs one says which extra."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from kafkalog_command import Command
from repository import REPOSITORY

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import OPTIONAL_PACKAGES, missing_package
from pyspark_kafkalog.tools.main import main

SETUP = configparser.ConfigParser()
SETUP.read(REPOSITORY / "setup.cfg")
#: Names of distributions by the names that Python imports, where they differ.
DISTRIBUTIONS = {
    "delta": "delta-spark",
    "re2": "google-re2",
    "google_crc32c": "google-crc32c",
    "prometheus_client": "prometheus-client",
}
#: Packages that come with others.
COMES_WITH = {"llvmlite": "numba", "py4j": "pyspark"}
#: Modules that import Spark when they are imported.
OF_SPARK = re.compile(r"pyspark_kafkalog\.(spark(\..*)?|notebook\.spark_helpers|delta\.delta_to_topic)")
IMPORT_ALL = """
import importlib, pkgutil, re, sys
for name in {blocked}:
    sys.modules[name] = None
import pyspark_kafkalog
modules = pkgutil.walk_packages(pyspark_kafkalog.__path__, "pyspark_kafkalog.")
names = [each.name for each in modules if not re.fullmatch({of_spark!r}, each.name)]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def distributions(requirements: str) -> set[str]:
    """The names in requirements, one a line."""
    found = (re.match(r"[\w-]+", line) for line in requirements.splitlines())
    return {name[0] for name in found if name is not None}


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below `node` except imports for types only."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from executed(child)


def third_party_imports() -> Iterator[tuple[str, str]]:
    """Module and top-level name of each import from another project, at the top of a module or inside of a function."""
    for path in sorted((REPOSITORY / "pyspark_kafkalog").rglob("*.py")):
        for node in executed(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in (each.partition(".")[0] for each in names):
                if name not in sys.stdlib_module_names and name != "pyspark_kafkalog":
                    yield str(path.relative_to(REPOSITORY)), name


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Have imports of the packages fail until the end of the test, as if they were not installed."""
    for name in {*packages, *sys.modules}:
        if name.partition(".")[0] in packages:
            monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    LogDir.create(tmp_path / "log").append("t", pa.table({"value": ["x", "y"]}))
    return tmp_path / "log"


@pytest.mark.parametrize("package", sorted(OPTIONAL_PACKAGES))
def test_package_is_in_extra_that_its_error_names_and_in_no_plain_install(package: str) -> None:
    (extra,) = re.findall(r"pip install 'pyspark_kafkalog\[([\w-]+)\]'$", str(missing_package(package, "jobs need")))
    name = DISTRIBUTIONS.get(package, package)
    assert name in distributions(SETUP["options.extras_require"][extra])
    assert name not in distributions(SETUP["options"]["install_requires"])


def test_all_has_every_extra_that_errors_name() -> None:
    (names,) = re.findall(r"^pyspark_kafkalog\[([\w,-]+)\]$", SETUP["options.extras_require"]["all"], re.M)
    assert set(OPTIONAL_PACKAGES.values()) <= set(names.split(",")) <= set(SETUP["options.extras_require"])


def test_every_import_is_of_a_requirement_or_of_an_optional_package() -> None:
    required = distributions(SETUP["options"]["install_requires"])
    found = [(path, COMES_WITH.get(name, name)) for path, name in third_party_imports()]
    assert {"numpy", "pyspark", "obstore"} <= {name for _, name in found}
    optional = {DISTRIBUTIONS.get(name, name) for name in OPTIONAL_PACKAGES}
    assert [(path, name) for path, name in found if DISTRIBUTIONS.get(name, name) not in required | optional] == []


@pytest.mark.slow
def test_modules_other_than_those_of_spark_import_without_optional_packages() -> None:
    code = IMPORT_ALL.format(blocked=sorted(OPTIONAL_PACKAGES), of_spark=OF_SPARK.pattern)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 300


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["retention", "--spark"], "pyspark", "spark"),
        (["retention", "--history", "runs"], "delta", "delta"),
        (["topic-to-delta", "--topic", "t", "--table", "/t", "--checkpoint", "/c"], "delta", "delta"),
        (["delta-to-topic", "--topic", "t", "--table", "/t", "--checkpoint", "/c", "--key", "id"], "delta", "delta"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
@pytest.mark.all_cases
def test_command_that_needs_spark_names_the_extra_in_one_line(
    arguments: list[str],
    package: str,
    extra: str,
    root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without(monkeypatch, "pyspark", "delta")
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    command, *options = arguments
    assert Command(command, root, capsys).try_to(*options) == (
        1,
        "",
        f"kafkalog {command}: this command, with these options, needs {package}, which is not installed: run pip "
        f"install 'pyspark_kafkalog[{extra}]'\n",
    )


def test_follow_with_spark_names_the_extra(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "pyspark", "delta")
    follow = Command("follow", tmp_path / "copy", capsys)
    exit_code, _, said = follow.try_to("--from", str(root), "--once", "--spark")
    assert exit_code == 1
    assert said.splitlines()[-1].endswith(
        "needs pyspark, which is not installed: run pip install 'pyspark_kafkalog[spark]'"
    )
    assert "Traceback" not in said


def test_command_on_object_store_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "obstore")
    assert main(["topics", "--path", "s3://bucket-of-nobody/log", "--list"]) == 1
    assert capsys.readouterr().err == (
        "kafkalog topics: log directories on object stores need obstore, which is not installed: run pip install "
        "'pyspark_kafkalog[object-store]'\n"
    )


def test_large_job_runs_in_this_process_only_without_spark(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> None:
        raise OSError("a Spark session would start")

    monkeypatch.setattr("pyspark_kafkalog.maintenance.jobs.runner.LOCAL_BYTES_MAX", 0)
    monkeypatch.setattr("pyspark_kafkalog.tools.maintenance.jobs.job_session", start)
    verify = Command("verify", root, capsys)
    assert "a Spark session would start" in verify.try_to()[2]
    without(monkeypatch, "pyspark", "delta")
    assert "t" in {report["topic"] for report in verify.json()}


def test_other_missing_module_is_not_taken_for_an_optional_package(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: object) -> int:
        raise ModuleNotFoundError("No module named 'other'", name="other")

    monkeypatch.setattr("pyspark_kafkalog.tools.topics.run", run)
    with pytest.raises(ModuleNotFoundError, match="other"):
        main(["topics", "--path", str(root), "--list"])
