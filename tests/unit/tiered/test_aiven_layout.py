"""The same segments as Aiven's plugin stores them: plain, compressed, encrypted, and with a prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from builders.aiven_objects import AivenWriter, write_key
from builders.tiered_fixtures import ALL, COLUMNS, ISOLATIONS, TieredFixture, rows_of
from cryptography.hazmat.primitives.asymmetric import rsa

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import InvalidOptionError

KEY: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
KINDS: Final = {
    "plain": AivenWriter(),
    "large-chunks": AivenWriter(chunk_bytes=1 << 20, prefix="folder/tiered-"),
    "compressed": AivenWriter(is_compressed=True, chunk_bytes=700),
    "encrypted": AivenWriter(key=KEY, prefix="tiered-"),
    "compressed-and-encrypted": AivenWriter(is_compressed=True, key=KEY, chunk_bytes=1500),
}


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_key(KEY, tmp_path_factory.mktemp("keys") / "private.pem")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fixture", ALL, ids=lambda fixture: fixture.name)
def test_directory_and_objects_have_the_records_of_the_consumer(
    fixture: TieredFixture, kind: str, tmp_path: Path, key_file: Path
) -> None:
    KINDS[kind].write(fixture, tmp_path)
    log_dir = LogDir.open(
        fixture.log_dir,
        remote_storage=tmp_path,
        remote_storage_key_files=f"pair-1:{key_file}",
        read_to_log_end=fixture.is_killed,
    )
    for topic in fixture.topics():
        for isolation in ISOLATIONS:
            table = log_dir.read(topic, isolation=isolation, columns=COLUMNS)
            assert rows_of(table) == fixture.rows(topic, isolation)
    for topic, expected in fixture.partitions():
        found = log_dir.partition(topic, expected["partition"])
        reader = log_dir.reader(topic, expected["partition"])
        for case in expected["by_time"][::5]:
            wanted = case["read_uncommitted"]
            record = reader.offset_for_timestamp(case["target"], found.log_start_offset, found.high_watermark)
            assert (-1 if record is None else record.offset) == wanted["offset"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.slow
def test_objects_alone_have_the_records_of_all_whole_copies(
    kind: str, isolation: Any, tmp_path: Path, key_file: Path
) -> None:
    for fixture in ALL:
        KINDS[kind].write(fixture, tmp_path / fixture.name)
        log_dir = LogDir.open(None, remote_storage=tmp_path / fixture.name, remote_storage_key_files=str(key_file))
        alone = LogDir.open(None, remote_storage=fixture.remote)
        assert log_dir.topics() == alone.topics()
        for topic in log_dir.topics():
            found = rows_of(log_dir.read(topic, isolation=isolation, columns=COLUMNS))
            assert found == rows_of(alone.read(topic, isolation=isolation, columns=COLUMNS))


def test_encrypted_segments_without_their_key_name_it(tmp_path: Path) -> None:
    fixture = ALL[0]
    KINDS["encrypted"].write(fixture, tmp_path / "objects")
    with pytest.raises(InvalidOptionError, match="rsm-manifest is encrypted with the key 'pair-1'"):
        LogDir.open(fixture.log_dir, remote_storage=tmp_path / "objects").read("tiered")
    other = write_key(rsa.generate_private_key(public_exponent=65537, key_size=2048), tmp_path / "other.pem")
    with pytest.raises(InvalidOptionError, match=r"other.pem is not the private key of 'pair-1'"):
        LogDir.open(fixture.log_dir, remote_storage=tmp_path / "objects", remote_storage_key_files=str(other)).read(
            "tiered"
        )
