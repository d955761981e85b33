"""Each notebook runs from top to bottom in a fresh kernel, and prints its committed output."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CELL_SECONDS_MAX = 240
WITH_SPARK = ("1_quickstart", "3_exactly_once")


def _cases() -> list[Any]:
    names = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    assert len(names) == 5
    return [pytest.param(name, marks=pytest.mark.spark if name in WITH_SPARK else (), id=name) for name in names]


def _printed(notebook: Any) -> list[str]:
    """What each cell printed, apart from warnings."""
    return [
        "".join(each.text for each in cell.outputs if each.output_type == "stream" and each.name == "stdout")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.parametrize("name", _cases())
def test_notebook_runs_and_prints_committed_output(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
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
