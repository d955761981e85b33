"""`kafkalog dump-log` reports garbage, bad arguments and output errors in one line on stderr, without a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repository import FIXTURES
from tiers import examples

from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.tools.main import main
from tests.unit.tools.dump.odd_inputs import NAME

SAMPLES = {
    ".log": "codecs-lz4/codecs-lz4-0",
    ".index": "cars/cars-0",
    ".timeindex": "cars/cars-0",
    ".snapshot": "idempotent/idempotent-0",
    ".txnindex": "transactions",
    ".checkpoint": "cluster-metadata",
}
OPTIONS = (
    [],
    ["--deep-iteration"],
    ["--print-data-log"],
    ["--print-data-log", "--skip-record-metadata"],
    ["--offsets-decoder"],
    ["--transaction-log-decoder"],
    ["--cluster-metadata-decoder"],
    ["--share-group-state-decoder"],
    ["--index-sanity-check"],
    ["--verify-index-only"],
    ["--max-bytes", "300"],
)


def _smallest(suffix: str) -> bytes:
    found = [path for path in (FIXTURES / SAMPLES[suffix]).rglob(f"*{suffix}") if path.stat().st_size > 20]
    return min(found, key=lambda path: path.stat().st_size).read_bytes()


SOUND = {suffix: _smallest(suffix) for suffix in SAMPLES}


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    suffix = draw(st.sampled_from(sorted(SOUND)))
    if draw(st.booleans()):
        return suffix, draw(st.binary(max_size=300))
    data = bytearray(SOUND[suffix])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        patch = draw(
            st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 4, bytes(8), b"\x7f\xff"]))
        )
        data[at : at + len(patch)] = patch
    return suffix, bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


def _dump(directory: Path, arguments: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        exit_code = main(["dump-log", *arguments])
    return exit_code, out.getvalue(), err.getvalue()


@settings(max_examples=examples(400), deadline=None)
@given(damaged(), st.sampled_from(OPTIONS), st.sampled_from(["text", "json"]))
def test_garbage_ends_dump_with_error_line(sample: tuple[str, bytes], options: list[str], output: str) -> None:
    suffix, data = sample
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for sibling in (".log", ".index"):
            (directory / (NAME + sibling)).write_bytes(SOUND[sibling])
        stem = f"{NAME}-0000000001" if suffix == ".checkpoint" else NAME
        path = directory / (stem + suffix)
        path.write_bytes(data)
        exit_code, out, err = _dump(directory, ["--files", str(path), "--output", output, *options])
    assert exit_code in (0, 1)
    if exit_code:
        assert err.splitlines()[-1].startswith("kafkalog dump-log: ")
    if output == "json":
        assert [json.loads(line)["type"] for line in out.split("\n")[:-1]].index("file") == 0


def test_bytes_with_magic_0_or_1_are_no_valid_message(tmp_path: Path) -> None:
    for magic in (0, 1):
        path = tmp_path / f"{NAME}.log"
        path.write_bytes(bytes(8) + (30).to_bytes(4, "big") + bytes(4) + bytes([magic]) + bytes(30))
        exit_code, out, err = _dump(tmp_path, ["--files", str(path)])
        assert (exit_code, err) == (0, "")
        assert out.splitlines()[2].startswith("offset: 0 position: 0 ")
        assert "isvalid: false" in out
        exit_code, _, err = _dump(tmp_path, ["--files", str(path), "--print-data-log"])
        assert exit_code == 1
        assert f"{path} at byte 0: expected the end of the message after its value" in err


def test_fifo_in_place_of_log_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{NAME}.log")
    exit_code, out, _ = _dump(tmp_path, ["--files", str(tmp_path / f"{NAME}.log")])
    assert (exit_code, out.count("\n")) == (0, 2)


def test_staged_file_is_dumped_with_offsets_from_0(tmp_path: Path) -> None:
    staged = tmp_path / "write-0.staged"
    staged.write_bytes(SOUND[".log"])
    exit_code, out, err = _dump(tmp_path, ["--files", str(staged)])
    assert (exit_code, err) == (0, "")
    assert out.splitlines()[1] == "Staged batches, offsets counted from 0"
    assert out.splitlines()[2].startswith("baseOffset: 0 ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dump-log"], "the following arguments are required: --files"),
        (["dump-log", "--files", "a.log", "--files", "b.log"], "given more than once"),
        (["dump-log", "--files", "a.log", "--max-bytes", "many"], "'many' is not a 32-bit number"),
        (["dump-log", "--files", "a.log", "--max-bytes", str(2**31)], "is not a 32-bit number"),
        (["dump-log", "--files", "a.log", "--value-decoder-class", "com.example.Mine"], "com.example.Mine"),
        (["dump-log", "--files", "a.log", "--deep"], "--deep"),
        (["dump"], "dump"),
    ],
)
def test_invalid_command_line_is_reported_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        exit_code = main(arguments)
    except SystemExit as exited:
        exit_code = int(str(exited.code))
    captured = capsys.readouterr()
    assert (exit_code, captured.out) == (2, "")
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_closed_pipe_ends_dump_without_traceback() -> None:
    log = FIXTURES / "cars" / "cars-0" / f"{NAME}.log"
    files = ",".join([str(log)] * 200)
    command = [sys.executable, "-m", "pyspark_kafkalog", "dump-log", "--print-data-log", "--files", files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"Dumping ")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 1


def test_full_disk_is_reported_in_one_line() -> None:
    log = FIXTURES / "cars" / "cars-0" / f"{NAME}.log"
    command = [sys.executable, "-m", "pyspark_kafkalog", "dump-log", "--files", str(log)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "kafkalog dump-log: [Errno 28] No space left on device\n")


def test_help_loads_no_heavy_modules() -> None:
    command = (
        "import sys\n"
        "from pyspark_kafkalog.tools.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'pyarrow', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert "dump-log" in done.stdout
    assert done.stdout.endswith("[]\n")


def test_records_of_a_bomb_are_printed_as_they_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = 70_000
    packed = CODECS[CompressionType.GZIP].compress(b"\x0c\0\0\0\1\1\0" * (count - 1) + b"\x0c\0\0\0\1\1\1", None)
    head = bytearray(encode_batch([Record(offset=0, timestamp_ms=1, key=None, value=b"", headers=())])[:61])
    struct.pack_into(">i", head, 8, len(head) + len(packed) - 12)
    struct.pack_into(">h", head, 21, CompressionType.GZIP)
    struct.pack_into(">i", head, 57, count)
    path = tmp_path / f"{NAME}.log"
    path.write_bytes(bytes(head) + packed)

    assert main(["dump-log", "--files", str(path), "--print-data-log"]) == 1

    printed = capsys.readouterr()
    assert printed.out.count("| offset: 0 ") == count - 1
    assert "header" in printed.err
