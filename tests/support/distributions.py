"""The wheel and the sdist of this package, and virtual environments to install them in."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from repository import REPOSITORY

from pyspark_kafkalog.record.kernels.cache import cache_directories


@dataclass(frozen=True, slots=True)
class Distributions:
    wheel: Path
    sdist: Path


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment of its own."""

    path: Path

    @property
    def site_packages(self) -> Path:
        (found,) = self.path.glob("lib/python3*/site-packages")
        return found

    def try_to(self, *command: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of the command, run outside of the repository."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
        environment = {**inherited, "PATH": f"{self.path}/bin:{os.environ['PATH']}", "NUMBA_CACHE_DIR": kernels_base()}
        done = subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def run(self, *command: str) -> str:
        """What the command prints, run outside of the repository. Fails the test when the command fails."""
        exit_code, out, err = self.try_to(*command)
        assert exit_code == 0, f"{command}: {out}{err}"
        return out

    def installed(self) -> set[tuple[str, str]]:
        """Names and versions of all packages."""
        code = "import importlib.metadata as m; print([(each.name, each.version) for each in m.distributions()])"
        return set(ast.literal_eval(self.python(code)))

    def python(self, code: str) -> str:
        return self.run("python", "-c", code)


def run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def sources(into: Path) -> Path:
    """A copy of what is tracked or new, so that builds leave nothing in the repository."""
    listed = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        path = REPOSITORY / name
        if not name or name.startswith("tests/") or not path.is_file():
            continue
        copy = into / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return into


def kernels_base() -> str:
    """The directory with the machine code of the tests' kernels, which installations of the same sources use too."""
    return str(cache_directories()[0].parent)


def new_environment(path: Path) -> Environment:
    """An environment that has nothing but pip."""
    run([sys.executable, "-m", "venv", str(path)])
    return Environment(path)


def environment(path: Path, *installed: str) -> Environment:
    """An environment with what is `installed`, and with all packages of the tests' environment."""
    made = new_environment(path)
    pip_install(made, "--no-deps", *installed)
    (made.site_packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return made


def lean_environment(path: Path, wheel: Path, *before: Path) -> Environment:
    """An environment with what `wheel` requires without extras, and with the wheels `before`; not yet with `wheel`.

    The requirements are links to packages of the tests' environment, so no index is asked.
    """
    made = new_environment(path)
    for distribution in required(wheel):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (made.site_packages / top).symlink_to(distribution.locate_file(top))
    if before:
        pip_install(made, "--no-index", *map(str, before))
    return made


def pip_install(made: Environment, *arguments: str) -> None:
    made.run("python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments)


def wheel_metadata(wheel: Path) -> Message:
    """What an index shows of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def required(wheel: Path) -> list[importlib.metadata.Distribution]:
    """What pip would install with the wheel without extras: packages of the tests' environment."""
    left = _needed(wheel_metadata(wheel).get_all("Requires-Dist", []))
    found: dict[str, importlib.metadata.Distribution] = {}
    while left:
        name = left.pop()
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            left += _needed(found[name].requires or [])
    return list(found.values())


def _needed(requirements: Iterable[str]) -> list[str]:
    """Names of the requirements that hold here without any extra."""
    parsed = [Requirement(each) for each in requirements]
    return [each.name for each in parsed if each.marker is None or each.marker.evaluate({"extra": ""})]


def stand_in(folder: Path, name: str, version: str) -> Path:
    """A wheel of that name with an empty package in it."""
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel
