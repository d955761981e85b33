"""Each notebook runs from top to bottom in a fresh kernel, and prints its committed output."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from kafka_processes.oracle import Broker
from kafka_processes.s3_proxy import S3Proxy
from nbclient import NotebookClient
from repository import REPOSITORY

NOTEBOOKS = REPOSITORY / "notebooks"
CELL_SECONDS_MAX = 240
#: Start Spark several times, to kill it, run beside an object store or a broker, or run many micro-batches.
LONG = ("3_exactly_once", "6_object_store", "7_kafka_clients", "8_following")
WITH_SPARK = ("1_quickstart", "3_exactly_once", "6_object_store", "7_kafka_clients", "8_following")


def _cases() -> list[Any]:
    names = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    assert len(names) == 8
    return [pytest.param(name, marks=_marks(name), id=name) for name in names]


def _marks(name: str) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.spark] if name in WITH_SPARK else []
    return [*marks, pytest.mark.full] if name in LONG else marks


def _printed(notebook: Any) -> list[str]:
    """What each cell printed, apart from warnings."""
    return [
        "".join(each.text for each in cell.outputs if each.output_type == "stream" and each.name == "stdout")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _set_bucket(server: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket of one's own, as the notebook's first lines ask for."""
    server.set_variables(monkeypatch)
    monkeypatch.setenv("KAFKALOG_NOTEBOOK_URL", server.new_location().below("notebook").url)


@pytest.mark.parametrize("name", _cases())
def test_notebook_runs_and_prints_committed_output(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    if name == "8_following":
        broker = Broker(tmp_path / "broker", {"offsets.topic.num.partitions": "2"}).start()
        request.addfinalizer(broker.stop)
        monkeypatch.setenv("KAFKALOG_NOTEBOOK_BOOTSTRAP", broker.bootstrap)
    if name == "6_object_store":
        _set_bucket(request.getfixturevalue("s3_proxy"), monkeypatch)
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    committed = _printed(notebook)
    client = NotebookClient(
        notebook, timeout=CELL_SECONDS_MAX, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOKS)}}
    )
    client.execute()
    assert _printed(notebook) == committed


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_outputs_contain_no_local_paths_or_errors(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    text = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users|var)/", text)
    assert notebook.metadata.keys() <= {"kernelspec", "language_info"}
    assert not any(cell.metadata for cell in notebook.cells)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs, "it is committed without outputs"
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
