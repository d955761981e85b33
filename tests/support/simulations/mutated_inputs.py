"""Mutated inputs, one after another in a process with little memory: each is answered, or refused by an error of ours.

    python simulations/mutated_inputs.py FOLDER SEED FIRST COUNT

FOLDER receives small roots: a native one, brokers' directories, a tiered one with manifests, and one in an object store
in memory. Each input is one of them with one mutated file, of which records, verification, retention, appends, groups
and the dump are asked; or a frame of a request or a response. A mutation changes bits, numbers, lengths or ranges,
recomputes the CRCs of batches and snapshots for most, or packs a compression bomb into a batch.

The process prints a line for each input before it begins, and one for each that failed. A process that ends, or that
is silent for longer than an input may take, has crashed or hangs at the input printed last: its parent sees to that.
The limit of memory is RLIMIT_DATA, since the libraries alone map more address space than it. An audit hook reports
each path outside of FOLDER that is changed or listed, or opened if it is none of Python's or the system's.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from repository import DATA

MEMORY_BYTES: Final = 1 << 30
SECONDS_MAX: Final = 10
_HUGE_BYTES: Final = 30 << 30
_NUMBERS: Final = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFE, 1 << 20)
_VARINTS: Final = (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f", b"\x80" * 9 + b"\x01")
#: Fields of a batch's header; twice those that say how much follows.
_FIELDS: Final = (
    *((0, ">q"), (8, ">i"), (12, ">i"), (16, ">b"), (21, ">h"), (23, ">i"), (27, ">q"), (35, ">q"), (43, ">q")),
    *((51, ">h"), (53, ">i"), (57, ">i"), (57, ">i"), (23, ">i")),
)
_HEADER_BYTES: Final = 61


class TooSlowError(Exception):
    """An input took more than SECONDS_MAX of a processor."""


def mutated(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Other bytes than `data`, mostly few of them; `others` are contents of other files."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out) + 1)
        to = min(at + rng.choice((1, 2, 4, 8, 16, 64, 1000)), len(out))
        kind = rng.randrange(10)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind in (1, 2):
            width = rng.choice((1, 2, 4, 8))
            order = rng.choice(("big", "big", "big", "little"))
            out[at : at + width] = (rng.choice(_NUMBERS) & (1 << 8 * width) - 1).to_bytes(width, order)  # type: ignore[arg-type]
        elif kind == 3:
            out[at : at + rng.choice((0, 1, 5))] = rng.choice(_VARINTS)
        elif kind == 4:
            del out[at:]
        elif kind == 5:
            del out[at:to]
        elif kind == 6:
            out[at:at] = rng.randbytes(to - at)
        elif kind == 7:
            start = rng.randrange(len(out) + 1)
            out[at:to], out[start : start + to - at] = out[start : start + to - at], out[at:to]
        elif kind == 8:
            out[at:at] = out[at:to]
        else:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            out[at:to] = other[start : start + to - at]
    return bytes(out)


def with_header_field(data: bytes, rng: random.Random) -> bytes:
    """Batches of which one has an extreme number in its header."""
    starts = batch_starts(data)
    if not starts:
        return data
    at, layout = rng.choice(_FIELDS)
    bits = 8 * struct.calcsize(layout)
    number = rng.choice((*_NUMBERS, -1, 1 << 62, -(1 << 62), (1 << 63) - 1)) % (1 << bits)
    out = bytearray(data)
    struct.pack_into(layout, out, rng.choice(starts) + at, number - (1 << bits) * (number >> bits - 1))
    return bytes(out)


def batch_starts(data: bytes) -> list[int]:
    starts = []
    at = 0
    while at + _HEADER_BYTES <= len(data):
        size_bytes = struct.unpack_from(">i", data, at + 8)[0] + 12
        if size_bytes < _HEADER_BYTES or at + size_bytes > len(data):
            break
        starts.append(at)
        at += size_bytes
    return starts


def resealed(data: bytes) -> bytes:
    """The data with the right CRC in each batch that is whole."""
    from pyspark_kafkalog.record.header import crc32c

    out = bytearray(data)
    for at in batch_starts(data):
        end = at + struct.unpack_from(">i", data, at + 8)[0] + 12
        struct.pack_into(">I", out, at + 17, crc32c(bytes(out[at + 21 : end])))
    return bytes(out)


def resealed_producers(data: bytes) -> bytes:
    from pyspark_kafkalog.record.header import crc32c

    return data[:2] + struct.pack(">I", crc32c(data[6:])) + data[6:] if len(data) > 6 else data


def with_bomb(data: bytes, rng: random.Random) -> bytes:
    """The first batch with content that is thousands of times as large."""
    starts = batch_starts(data)
    if not starts:
        return data
    codec = rng.randrange(1, 5)
    packed, count = _bomb(codec, rng.randrange(4), rng.choice((30 << 20, 30 << 20, 250 << 20)))
    head = bytearray(data[:_HEADER_BYTES])
    struct.pack_into(">i", head, 8, _HEADER_BYTES + len(packed) - 12)
    struct.pack_into(">h", head, 21, struct.unpack_from(">h", head, 21)[0] & ~7 | codec)
    struct.pack_into(">i", head, 57, rng.choice((count, count, 1, 0x7FFFFFFF)))
    return bytes(head) + packed + (data[starts[1] :] if len(starts) > 1 else b"")


@cache
def _bomb(codec: int, kind: int, size_bytes: int) -> tuple[bytes, int]:
    """Compressed records and their number: zeros; many small ones; one with many headers; one with a large value.

    Made by a process of its own: only what reads the bomb is limited.
    """
    code = f"from simulations import mutated_inputs; mutated_inputs._print_bomb({codec}, {kind}, {size_bytes})"
    made = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE).stdout
    count, _, packed = made.partition(b"\n")
    return packed, int(count)


def _print_bomb(codec: int, kind: int, size_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    packed, count = _made_bomb(codec, kind, size_bytes)
    sys.stdout.buffer.write(b"%d\n%s" % (count, packed))


def _made_bomb(codec: int, kind: int, size_bytes: int) -> tuple[bytes, int]:
    from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
    from pyspark_kafkalog.record.reference import encode_varint

    count = 1
    if kind == 0:
        content = bytes(size_bytes)
    elif kind == 1:
        count = size_bytes // 7
        content = b"\x0c\0\0\0\1\1\0" * count
    elif kind == 2:
        headers = size_bytes // 2
        body = b"\0\0\0\1\1" + encode_varint(headers) + b"\0\1" * headers
        content = encode_varint(len(body)) + body
    else:
        body = b"\0\0\0\1" + encode_varint(size_bytes) + bytes(size_bytes) + b"\0"
        content = encode_varint(len(body)) + body
    level = {CompressionType.ZSTD: -5, CompressionType.GZIP: 1}.get(CompressionType(codec))
    return CODECS[CompressionType(codec)].compress(content, level), count


def mutated_file(name: str, data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Another content of the file."""
    has_batches = name.endswith((".log", ".checkpoint", ".batches"))
    if has_batches and rng.random() < 0.02:
        return resealed(with_bomb(data, rng))
    is_header = has_batches and rng.random() < 0.4
    changed = with_header_field(data, rng) if is_header else mutated(data, rng, others)
    if rng.random() < 0.8:
        if has_batches:
            return resealed(changed)
        if name.endswith(".snapshot"):
            return resealed_producers(changed)
    return changed


@dataclass(frozen=True)
class Root:
    """A directory of FOLDER, or a store in memory, and what is asked of it. `files` are what is mutated."""

    name: str
    path: Path
    files: tuple[Path, ...]
    open: Callable[[], Any]
    topics: tuple[str, ...]
    is_writable: bool


def _files(path: Path) -> tuple[Path, ...]:
    return tuple(sorted(each for each in path.rglob("*") if each.is_file() and each.name != ".lock"))


def make_roots(folder: Path) -> list[Root]:
    """The roots on the file system."""
    import pyarrow as pa
    from builders.tiered_logs import bases, copy_closed, delete_local, fill, tiering_root
    from builders.verify_roots import make_root

    from pyspark_kafkalog import LogDir

    def of(name: str, *topics: str, root: str = "", writable: bool = False, **options: Any) -> Root:
        top = folder / name
        return Root(name, top, _files(top), lambda: LogDir.open(top / root, **options), topics, writable)

    def copied(name: str, source: Path) -> None:
        shutil.copytree(source, folder / name)
        shutil.rmtree(folder / name / "expected", ignore_errors=True)

    made = make_root(folder / "native")
    made.append("orders", pa.table({"value": [b"x" * 50] * 20}), partition=1, compression_type="lz4")
    (folder / "tiering").mkdir(parents=True)
    tiering = tiering_root(folder / "tiering" / "root", folder / "tiering" / "remote")
    fill(tiering, random.Random(3), 60)
    copy_closed(tiering)
    tiering.refresh()
    delete_local(tiering, bases(tiering)[-2])
    copied("groups", DATA / "fixtures" / "consumer-offsets")
    copied("transactions", DATA / "fixtures" / "transactions")
    copied("states", DATA / "fixtures" / "transaction-state")
    copied("cluster", DATA / "fixtures" / "cluster-metadata")
    copied("codecs", DATA / "fixtures" / "codecs-lz4")
    copied("tiered", DATA / "fixtures-tiered" / "tiered")
    return [
        of("native", "orders", "transactions", writable=True),
        of("tiering", "orders", root="root", writable=True),
        of("groups"),
        of("transactions", "transactions"),
        of("states"),
        of("cluster"),
        of("codecs"),
        of("tiered", root="log-dir", remote_storage=str(folder / "tiered" / "remote")),
    ]


class Inputs:
    """Makes each input by its number and the seed, and asks of it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.roots = make_roots(folder / "made")
        self.contents = {file: file.read_bytes() for root in self.roots for file in root.files}
        self.work = folder / "work"
        self.others = list(self.contents.values())
        self.objects = ObjectRoots()

    def run(self, number: int) -> str:
        """Check input `number`; returns what it was."""
        rng = random.Random(f"{self.seed}/{number}")
        draw = rng.random()
        if draw < 0.25:
            return self._wire(rng)
        if draw < 0.4:
            return self.objects.run(rng, self.others)
        return self._file(rng)

    def _file(self, rng: random.Random) -> str:
        root = rng.choice(self.roots)
        file = rng.choice(root.files)
        suffix = file.suffix
        if rng.random() < 0.5:  # of each kind of file, whatever their number
            suffix = rng.choice(sorted({each.suffix for each in root.files}))
            file = rng.choice([each for each in root.files if each.suffix == suffix])
        data = self.contents[file]
        if rng.random() < 0.01:
            with file.open("r+b") as stream:
                stream.truncate(rng.choice((_HUGE_BYTES, 1 << 31, (1 << 31) - 1)))
        else:
            file.write_bytes(mutated_file(file.name, data, rng, self.others))
        told = f"{root.name} {file.name}"
        try:
            return f"{told} {self._ask(root, file, rng)}"
        finally:
            file.write_bytes(data)
            if root.is_writable:
                self._restore(root)

    def _restore(self, root: Root) -> None:
        kept = set(root.files)
        for each in _files(root.path):
            if each not in kept:
                each.unlink()
        for each in root.files:
            each.parent.mkdir(parents=True, exist_ok=True)
            if not each.exists() or each.read_bytes() != self.contents[each]:
                each.unlink(missing_ok=True)
                each.write_bytes(self.contents[each])

    def _ask(self, root: Root, file: Path, rng: random.Random) -> str:
        asked = [read_all, read_all, list_groups, verify_all, offsets_at]
        if root.is_writable:
            asked += [append_rows, retain_dry, retain, tidy]
        ask = rng.choice([*asked, dump])
        return outcome_of(ask, root, file, rng)

    def _wire(self, rng: random.Random) -> str:
        from fakes.hostile_clients import drawn_frame

        from pyspark_kafkalog.errors import CorruptRecordError, UnsupportedApiError
        from pyspark_kafkalog.protocol.api import APIS, decode_response, encode_response, joined, parse_request
        from simulations.random_messages import RandomMessages

        with contextlib.suppress(CorruptRecordError, UnsupportedApiError):
            if rng.random() < 0.6:
                frame = mutated(drawn_frame(rng), rng, self.others)
                request = parse_request(frame)
                return f"request {request.body() if request.is_supported else None!r}"[:40]
            api = rng.choice(tuple(APIS.values()))
            version = rng.choice(tuple(api.versions))
            message = RandomMessages(rng).draw(api.response, version)
            frame = mutated(joined(encode_response(api, version, 1, message))[4:], rng, self.others)
            decode_response(api, version, frame, api.response)
        return "wire"


def outcome_of(ask: Callable[..., Any], *arguments: Any) -> str:
    """What `ask` did: nothing to complain of, or an error of ours."""
    from builders.metadata_roots import forget_images

    from pyspark_kafkalog.errors import KafkalogError
    from pyspark_kafkalog.tiered import objects as remote_objects

    forget_images()
    remote_objects._cache.cache_clear()
    try:
        ask(*arguments)
    except KafkalogError as error:
        return f"{ask.__name__}: {type(error).__name__}"
    return f"{ask.__name__}: ok"


def read_all(root: Root, file: Path, rng: random.Random) -> None:
    log_dir = root.open()
    topics = root.topics or tuple(rng.sample(log_dir.topics(), min(len(log_dir.topics()), 2)))
    for topic in topics:
        log_dir.read(topic, isolation=rng.choice(("read_committed", "read_uncommitted")))


def offsets_at(root: Root, file: Path, rng: random.Random) -> None:
    log_dir = root.open()
    topic = rng.choice(root.topics or log_dir.topics() or ("none",))
    for number in log_dir.partition_numbers(topic)[:2]:
        found = log_dir.partition(topic, number)
        reader = log_dir.reader(topic, number)
        reader.offset_for_timestamp(rng.choice((0, 1 << 40)), found.log_start_offset, found.high_watermark)
        reader.offset_of_max_timestamp(found.log_start_offset, found.high_watermark)


def list_groups(root: Root, file: Path, rng: random.Random) -> None:
    log_dir = root.open()
    for group in log_dir.groups()[:3]:
        log_dir.group(group).committed_offsets() if hasattr(log_dir.group(group), "committed_offsets") else None


def verify_all(root: Root, file: Path, rng: random.Random) -> None:
    from pyspark_kafkalog.maintenance.verify.verify import verify

    verify(root.open().root, are_records_checked=rng.random() < 0.7)


def append_rows(root: Root, file: Path, rng: random.Random) -> None:
    import pyarrow as pa

    root.open().append(root.topics[0], pa.table({"value": [b"new"] * 5}), partition=0)


def retain_dry(root: Root, file: Path, rng: random.Random) -> None:
    retain(root, file, rng, dry_run=True)


def retain(root: Root, file: Path, rng: random.Random, *, dry_run: bool = False) -> None:
    from pyspark_kafkalog.maintenance.retention.delete import apply_retention

    apply_retention(root.open().root, dry_run=dry_run)


def tidy(root: Root, file: Path, rng: random.Random) -> None:
    """Merge the segments of a partition, or rebuild its indexes."""
    from pyspark_kafkalog.tools.main import main

    command = rng.choice(("merge-segments", "reindex"))
    path = root.path / "root" if (root.path / "root").exists() else root.path
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        main([command, "--path", str(path)])
    if "Traceback" in err.getvalue():
        raise AssertionError(err.getvalue())


def _states_many_records(data: bytes) -> bool:
    counts = (struct.unpack_from(">i", data, at + 57)[0] for at in batch_starts(data) if data[at + 22] & 7)
    return max(counts, default=0) > 1 << 20


def dump(root: Root, file: Path, rng: random.Random) -> None:
    from pyspark_kafkalog.tools.main import main

    if file.stat().st_size > 1 << 24:
        return  # as Kafka's tool, it prints each entry
    more = rng.choice(
        ([], ["--print-data-log"], ["--deep-iteration"], ["--cluster-metadata-decoder"], ["--offsets-decoder"])
    )
    if _states_many_records(file.read_bytes()):
        more = []  # as Kafka's tool, it takes time for each record
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as err,
        contextlib.suppress(SystemExit),
    ):
        main(["dump-log", "--files", str(file), *more])
    if "Traceback" in err.getvalue():
        raise AssertionError(err.getvalue())


class ObjectRoots:
    """A root in a store in memory, of which each input changes one object."""

    def __init__(self) -> None:
        from tests.property.objects.test_fuzz import healthy

        self.url, self.objects = healthy()
        self.keys = sorted(self.objects)

    def run(self, rng: random.Random, others: list[bytes]) -> str:
        from dataclasses import replace

        from builders.root_places import client_address
        from fakes.faulty_store import FaultyStore

        from pyspark_kafkalog import LogDir
        from pyspark_kafkalog.root import object_log as object_extents
        from tests.property.objects.test_fuzz import store_with

        key = rng.choice(self.keys)
        found = self.objects[key]
        store: FaultyStore = store_with(
            {**self.objects, key: replace(found, body=mutated_file(key, bytes(found.body), rng, others))}
        )
        object_extents._caches.cache_clear()
        address = client_address(self.url, store)
        root = Root("object", Path("none"), (), lambda: LogDir.open(address), ("t",), True)
        ask = rng.choice((read_all, read_all, verify_all, append_rows, retain_dry, retain, list_groups, offsets_at))
        return f"object {key} {outcome_of(ask, root, Path('none'), rng)}"


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooSlowError(f"not done in {seconds} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    folder, seed, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    import logging

    import numba
    from fakes.watched_paths import WatchedPaths

    from pyspark_kafkalog.maintenance.verify import findings as verify_findings
    from pyspark_kafkalog.maintenance.verify import segment as verify_segment

    logging.disable(logging.CRITICAL)
    verify_findings._BETWEEN_CHECKS_S = verify_segment._BETWEEN_CHECKS_S = 0.0  # type: ignore[misc]
    (folder / "made").mkdir(parents=True)
    tempfile.tempdir = str(folder)
    inputs = Inputs(folder, seed)
    for ask in (read_all, verify_all):  # compiles, and shows that the roots are sound
        for root in inputs.roots:
            print(json.dumps({"sound": f"{root.name} {outcome_of(ask, root, root.files[0], random.Random(1))}"}))
    caches = [Path(each) for each in (os.environ.get("NUMBA_CACHE_DIR"), numba.config.CACHE_DIR) if each]
    system = map(Path, ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", sys.prefix, sys.base_prefix))
    readable = WatchedPaths(folder, *caches, DATA.parents[1], *system)
    changeable = WatchedPaths(folder, *caches, Path("/dev/null"))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, resource.RLIM_INFINITY))
    with readable, changeable:
        for number in range(first, first + count):
            check(inputs, number, readable.used, changeable.changed)
    peak_kib = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    print(json.dumps({"peak_kib": peak_kib}), flush=True)


def check(inputs: Inputs, number: int, *paths: list[str]) -> None:
    """Run one input, and print what was wrong with it; `paths` receive what it used outside."""
    print(json.dumps({"begin": number}), flush=True)
    told = ""
    try:
        with limited(SECONDS_MAX):
            told = inputs.run(number)
    except (Exception, TooSlowError) as error:
        trace = traceback.format_exc(limit=-8)
        print(json.dumps({"failed": number, "error": repr(error)[:300], "trace": trace}), flush=True)
    for outside in paths:
        if outside:
            print(json.dumps({"failed": number, "error": f"paths {outside[:5]}", "trace": told}), flush=True)
            outside.clear()
    print(json.dumps({"end": number, "told": told}))


if __name__ == "__main__":
    main()
