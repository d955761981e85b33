"""Each command over an object root whose commits are forged: an error that names the commit, and no key of others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from builders.forged_commits import BIG, FOREIGN, FORGED, fill, forged_body, lines
from builders.metadata_roots import forget_images
from builders.root_places import memory_root, store_of
from fakes.watched_paths import WatchedPaths

from pyspark_kafkalog.errors import CorruptRecordError, KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.objects.log import commit_key
from pyspark_kafkalog.storage.names import offset_file_name
from pyspark_kafkalog.tools.main import main


@pytest.fixture
def url() -> str:
    place = memory_root()
    fill(place, store_of(place).bucket.write)
    return place


def status_of(line: list[str]) -> int:
    try:
        return main(line)
    except SystemExit as ended:
        return int(str(ended.code))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FORGED, BIG])
def test_no_command_uses_what_a_forged_commit_names(
    url: str, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store, log_dir = store_of(url), LogDir.open(url)
    offset = log_dir.root.native().store.image.next_offset
    store.bucket.write(commit_key(offset), forged_body(name, offset))
    before = {key: each.body for key, each in store.bucket.objects.items()}
    store.calls.clear()
    home = tmp_path / "home"
    home.mkdir()
    with WatchedPaths(home) as watched:
        for line in lines(url, home):
            forget_images()
            status = status_of(line)
            said = capfd.readouterr().err
            assert status == 1, line
            assert "Traceback" not in said
            if line[0] not in ("verify", "du"):
                assert offset_file_name(offset, ".log") in said, line
        for use in (lambda: log_dir.append("orders", pa.table({"value": ["z"]})), log_dir.refresh):
            with pytest.raises(KafkalogError):
                use()
    assert {key: each.body for key, each in store.bucket.objects.items()} == before
    assert not {key for call in store.calls for key in call.keys if key in FOREIGN or ".." in key}
    assert not [each for each in watched.changed if "secret" in each or "victim" in each]
    forget_images()
    with pytest.raises(CorruptRecordError, match=offset_file_name(offset, ".log")):
        LogDir.open(url)


@pytest.mark.slow
def test_all_commands_succeed_without_a_forged_commit(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for line in lines(url, tmp_path):
        forget_images()
        is_refused = line[-1] == "--repair"  # of files alone, which it says before it reads anything
        assert status_of(line) == int(is_refused), (line, capfd.readouterr())
    assert FOREIGN.items() <= {key: each.body for key, each in store_of(url).bucket.objects.items()}.items()
