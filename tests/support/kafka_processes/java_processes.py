"""Java programs for tests: their jars, fetched once, and servers that die with the process that started them.

Jars come through the Ivy that ships inside pyspark, into a folder of `$KAFKALOG_TEST_CACHE` (default
`~/.cache/pyspark_kafkalog`). Servers listen on 127.0.0.1 only, on ports that were free.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

_PR_SET_PDEATHSIG: Final = 1
_RESOLVE_SECONDS_MAX: Final = 900

#: Java options for processes that live for seconds: the second compiler costs more than it gains.
QUICK_START: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xlog:disable",  # what the JVM says of archives would stand in a tool's output
    "-Djava.awt.headless=true",
)


class JavaProcessError(Exception):
    """A Java program could not be had, started or stopped; the message ends with what it said."""


def java() -> str:
    """The Java that Spark would use."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def cache_dir() -> Path:
    """Where jars are kept between test runs."""
    configured = os.environ.get("KAFKALOG_TEST_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "pyspark_kafkalog"


def fetch_jars(home: Path, dependencies: str, wanted: Sequence[str]) -> Path:
    """`home`/lib with the jars of Ivy's `dependencies` (XML), of which `wanted` are looked for by name.

    Fetched by the first process that asks, ever; the others wait for it.
    """
    home.mkdir(parents=True, exist_ok=True)
    lib = home / "lib"
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not lib.is_dir():
            unfinished = home / "lib.tmp"
            shutil.rmtree(unfinished, ignore_errors=True)
            _resolve(home, dependencies, unfinished, wanted)
            unfinished.rename(lib)
    return lib


def _resolve(home: Path, dependencies: str, into: Path, wanted: Sequence[str]) -> None:
    import pyspark

    (ivy_jar,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    ivy_file = home / "ivy.xml"
    ivy_file.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
        f'  <info organisation="kafkalog-tests" module="{home.name}"/>\n'
        f"  <dependencies>\n{dependencies}  </dependencies>\n</ivy-module>\n"
    )
    command = [java(), "-jar", str(ivy_jar), "-ivy", str(ivy_file), "-cache", str(home / "ivy-cache")]
    command += ["-types", "jar", "bundle", "-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_RESOLVE_SECONDS_MAX)
    missing = [name for name in wanted if not (into / name).is_file()]
    if done.returncode or missing:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise JavaProcessError(
            f"the jars of {home.name} could not be fetched (leave such tests out: -m 'not interop'):\n{tail}"
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Whether somebody listens on the port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def start_server(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """A process in a session of its own, which dies with this one; both of its outputs go to `log`."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=_DIE_WITH_PARENT
    )


def processor_seconds_of(pid: int) -> float:
    """The processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _make_parent_death_signal() -> Any:
    """What a child runs first, so that it gets SIGKILL when its parent dies in any way (Linux), or None elsewhere."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


_DIE_WITH_PARENT: Final = _make_parent_death_signal()
