"""The files in conf/: they parse, and names in them exist. server.properties is compared with its table in storage/."""

from __future__ import annotations

import importlib.util
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.report_roots import lively_root
from kafkalog_command import Command
from repository import REPOSITORY

from pyspark_kafkalog.config.properties_file import parse_properties
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanerRun, write_last_run

CONF = REPOSITORY / "conf"
_METRIC = re.compile(r"\b(?:kafka|kafkalog)_[a-z_]+\b")
_COLUMNS = 24


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((CONF / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return tree


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (each["definition"] for each in dashboard["templating"]["list"] if each["type"] == "query")


def test_every_metric_of_dashboard_is_served(
    dashboard: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    lively_root(root)
    write_last_run(LogDir.open(root).root.native(), CleanerRun(began_ms=0, ended_ms=1))
    served = Command("metrics", root, capsys)("--once")
    labels = {name: set(re.findall(r'(\w+)="', tags)) for name, tags in re.findall(r"^(\w+)(\{.*\})? ", served, re.M)}

    for expression in expressions(dashboard):
        asked = _METRIC.findall(expression)
        assert asked, expression
        for name in asked:
            assert name in labels, name
        # What Prometheus adds by itself is not served here: the instance.
        for name, selector in re.findall(r"(\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)=~", selector)) <= labels[name] | {"instance"}


def test_dashboard_sums_over_existing_labels(dashboard: dict[str, Any]) -> None:
    known = {"topic", "partition", "group", "logDirectory", "instance"}

    for expression in expressions(dashboard):
        for by in re.findall(r"by \(([^)]*)\)", expression):
            assert set(by.split(", ")) <= known
        assert expression.count("(") == expression.count(")")
        assert expression.count("{") == expression.count("}")


def test_dashboard_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= _COLUMNS
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_dashboard_variables_are_defined(dashboard: dict[str, Any]) -> None:
    defined = {each["name"] for each in dashboard["templating"]["list"]} | {"__rate_interval", "__all"}

    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard)))

    assert used <= defined


def test_loggers_in_log4j2_properties_exist_in_spark() -> None:
    path = CONF / "log4j2.properties"
    properties = parse_properties(path.read_bytes(), file=str(path))
    names = {value for key, value in properties.items() if re.fullmatch(r"logger\.\w+\.name", key)}
    assert len(names) >= 5
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    there: set[str] = set()
    for jar in (Path(spec.origin).parent / "jars").glob("*.jar"):
        if jar.name.startswith(("spark-", "hadoop-client-api")):
            with zipfile.ZipFile(jar) as archive:
                there.update(name.removesuffix(".class").rstrip("/").replace("/", ".") for name in archive.namelist())

    # A logger is a class or a package.
    assert {name for name in names if name not in there} <= {"org.sparkproject.jetty"}
    assert any(name.startswith("org.sparkproject.jetty.") for name in there)
