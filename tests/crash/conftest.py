"""What the crash tests share: the files that they leave for Kafka's tool, and the count of points for the summary."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.crash.checks import FileChecks

_REPORT = pytest.StashKey[dict[str, str]]()


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> dict[str, str]:
    """What to say of each scenario at the end of the run."""
    return request.config.stash.setdefault(_REPORT, {})


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> FileChecks:
    """Checks partitions file by file and keeps each that is new."""
    return FileChecks(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(autouse=True)
def _few_words(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Leave out what is logged of errors that are made on purpose."""
    caplog.set_level("CRITICAL", logger="pyspark_kafkalog")
    return


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_REPORT, {})
    if not lines:
        return
    terminalreporter.section("crash matrix")
    for name, line in lines.items():
        terminalreporter.line(f"{name}: {line}")
    total = sum(int(found) for line in lines.values() for found in re.findall(r"(\d+) points", line))
    terminalreporter.line(f"points tried in all: {total}")
