"""Facts that pages name are those of the code: defaults, configurations, options, versions, exit statuses."""

from __future__ import annotations

import builtins
import configparser
import importlib.util
import inspect
import re

import pytest
from documented import PAGES
from repository import REPOSITORY

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.config.broker import BROKER_CONFIGS
from pyspark_kafkalog.config.group import GROUP_CONFIGS
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.maintenance.jobs.tasks import PACKAGE
from pyspark_kafkalog.metadata.root_format import FORMAT_VERSION, OBJECT_FORMAT_VERSION, TIERED_FORMAT_VERSION
from pyspark_kafkalog.spark.options.table import IGNORED_OPTIONS, OPTIONS
from pyspark_kafkalog.tools.main import COMMANDS, command_parser, main

DEFAULTS = {
    **{each.name.lower(): each.default for each in OPTIONS},
    **{name: definition.default_text for name, definition in BROKER_CONFIGS.items()},
    **{name: config.definition.default_text for name, config in TOPIC_CONFIGS.items()},
}
#: A default in running text: `name` (a day by default), `name` (128 MiB), `name`, a minute by default.
STATED = re.compile(
    r"(?:`([A-Za-z]\w+)`|([a-z]+(?:\.[a-z]+)+)`?),? \(?(?:default: )?"
    r"(?:`?(an? \w+|[\w.]+(?: [KMGT]iB)?)`?(?: by default\b| \(default\))|(an? \w+|\d+ [KMGT]iB)\))"
)
UNITS_MS = {"second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
UNITS_BYTES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
#: A name that looks like a configuration of Kafka: its last part is one of those that they end with.
CONFIG = re.compile(
    r"`([a-z]+(?:\.[a-z]+)+\.(?:ms|bytes|minutes|enable|size|threads|policy|ratio|type|partitions))[`=]"
)
#: A name that looks like an option of the data source.
OPTION = re.compile(
    r"`((?:store|starting|ending|txn|max|min|failOn|include|readTo|remoteStorage|filterPush|commitOff)[A-Z]\w+)[`=]"
)
#: Those of clients, brokers and plugins that pages name and that this package does not have.
OF_OTHERS = {"rlmm.config.remote.log.metadata.topic.num.partitions", "transaction.timeout.ms"}
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
SETUP = configparser.ConfigParser()
SETUP.read(REPOSITORY / "setup.cfg")


def texts() -> list[tuple[str, str]]:
    """The pages of this version by name: CHANGELOG.md tells of earlier ones, OPTIONS.md is generated."""
    left_out = ("CHANGELOG.md", "OPTIONS.md")
    return [(page.name, page.read_text(encoding="utf-8")) for page in PAGES if page.name not in left_out]


def as_number(stated: str) -> str:
    """`a minute` as 60000, `128 MiB` as 134217728; other texts as they are."""
    words = stated.split()
    if words[0] in ("a", "an") and words[-1] in UNITS_MS:
        return str(UNITS_MS[words[-1]])
    return str(int(words[0]) * UNITS_BYTES[words[1]]) if len(words) == 2 and words[1] in UNITS_BYTES else stated


def test_defaults_in_pages_are_those_of_the_code() -> None:
    checked = set()
    for page, text in texts():
        for simple, dotted, *either in STATED.findall(text.replace("\n", " ")):
            (name, stated) = (simple or dotted, "".join(either))
            if name.lower() in DEFAULTS:
                expected = re.split(r"[;,] ", str(DEFAULTS[name.lower()]))
                assert any(as_number(stated) in each.split() for each in expected), f"{page}: `{name}` {stated}"
                checked.add(name)
    assert {"file.delete.delay.ms", "log.cleaner.dedupe.buffer.size", "metadata.max.retention.ms"} <= checked


def test_configurations_in_pages_exist() -> None:
    ignored = tuple(each.name.removesuffix("*") for each in IGNORED_OPTIONS)
    known = {*DEFAULTS, *GROUP_CONFIGS, *OF_OTHERS}
    missing = [
        f"{page}: {name}"
        for page, text in texts()
        for name in CONFIG.findall(text)
        if name not in known and not f"kafka.{name}".startswith(ignored) and not name.startswith(("spark.", "kafka."))
    ]
    assert missing == []


def test_python_names_in_pages_exist() -> None:
    """Methods of LogDir with their keywords, errors, and modules."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "pyspark_kafkalog").rglob("*.py"))
    methods = 0
    for page, text in texts():
        for name, arguments in re.findall(
            r"`[^`]*\b(?:LogDir|log_dir)\.(?!py\b)(\w+)(\([^)]*\))?", FENCED.sub("", text)
        ):
            keywords = set(re.findall(r"(\w+)=", arguments))
            assert hasattr(LogDir, name), f"{page}: LogDir.{name}"
            assert keywords <= set(inspect.signature(getattr(LogDir, name)).parameters), (
                f"{page}: LogDir.{name}{arguments}"
            )
            methods += 1
        for name in re.findall(r"`(\w+Error)`", text):
            assert f"class {name}(" in sources or hasattr(builtins, name), f"{page}: {name}"
        for name in re.findall(r"`(pyspark_kafkalog(?:\.[a-z_]+)+)`", text):
            assert importlib.util.find_spec(name) is not None, f"{page}: {name}"
    assert methods > 10


def test_options_of_the_data_source_in_pages_exist() -> None:
    found = {(page, name) for page, text in texts() for name in OPTION.findall(text)}
    assert len(found) > 40
    known = {each.name for each in OPTIONS}
    assert sorted((page, name) for page, name in found if name not in known) == []


def test_metrics_in_pages_exist() -> None:
    """Names are put together of a bean's type and its attribute, which the code spells as Kafka does."""
    sources = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "pyspark_kafkalog").rglob("*.py")]
    spelt = {re.sub(r"[^a-z]", "", each.lower()) for text in sources for each in re.findall(r'"([\w.-]{6,})"', text)}
    metrics = {
        name for _, text in texts() for name in re.findall(r"\b(?:kafka|kafkalog)_[a-z]+_[a-z_]*[a-z]\b(?!_)", text)
    }
    assert len(metrics) > 10
    for metric in metrics:
        flat = metric.replace("_", "")
        assert any(flat.endswith(each) for each in spelt), metric


@pytest.mark.parametrize("command", ["topic-to-delta", "delta-to-topic"])
def test_defaults_of_options_in_tables_are_those_of_the_parser(command: str) -> None:
    text = (REPOSITORY / "docs" / "DELTA.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| option \| default \| meaning \|\n.*\n((?:\|.*\n)+)", text)
    actions = command_parser(command)._option_string_actions
    rows = [[cell.strip() for cell in row.split("|")[1:3]] for row in table.splitlines()]
    for names, default in rows:
        for name in re.findall(r"`(--[\w-]+)`", names):
            if name not in actions:
                assert command != "topic-to-delta", name
            elif default == "(required)":
                assert actions[name].required, name
            elif default in ("off", "none: raw", ""):
                assert not actions[name].default, name
            elif "=" not in default:
                says = f"{actions[name].default} {actions[name].help}"
                assert default.strip("`") in says, name


def test_options_of_all_jobs_are_those_of_the_table() -> None:
    text = (REPOSITORY / "docs" / "SCHEDULING.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| option \| meaning \|\n.*\n((?:\|.*\n)+)", text)
    named = set(re.findall(r"`(--[\w-]+)[` ]", table))
    assert len(named) > 8
    for command in ("retention", "log-cleaner", "merge-segments", "tier"):
        assert named <= set(command_parser(command)._option_string_actions), command


@pytest.mark.parametrize("command", sorted(name for group in COMMANDS.values() for name in group))
def test_defaults_in_help_are_those_of_the_parser(command: str) -> None:
    for action in command_parser(command)._actions:
        stated = re.search(r"default:? ([^);,]+)", (action.help or "") % {"default": action.default, "prog": command})
        if stated is not None and isinstance(action.default, str | int) and action.default not in ("", ".*", 0, False):
            assert stated[1] == str(action.default), action.option_strings


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        ("SCHEDULING.md", ("retention", "log-cleaner", "merge-segments", "tier", "verify", "delete-records")),
        ("DELTA.md", ("topic-to-delta", "delta-to-topic")),
    ],
)
def test_statuses_of_wrong_options_are_those_of_the_pages(page: str, commands: tuple[str, ...]) -> None:
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8").replace("\n", " ")
    (status,) = re.findall(r"\| (\d) \| wrong options \||(?<=; )(\d), wrong +options", text)
    for command in commands:
        with pytest.raises(SystemExit) as exited:
            main([command, "--no-such-option"])
        assert str(exited.value.code) in status, command


def test_versions_in_pages_are_those_of_the_package() -> None:
    extras = SETUP["options.extras_require"]
    (lowest, below) = re.findall(r"^pyspark>=4\.(\d+),<4\.(\d+)$", extras["spark"], re.M)[0]
    sparks = {f"4.{minor}" for minor in range(int(lowest), int(below))}
    (delta,) = re.findall(r"^delta-spark==([\d.]+)$", extras["delta"], re.M)
    (oldest, beyond) = re.findall(r"3\.(\d+)", SETUP["options"]["python_requires"])
    supported = [f"3.{minor}" for minor in range(int(oldest), int(beyond))]
    assert (
        re.findall(r"^Programming Language :: Python :: (3\.\d+)$", SETUP["metadata"]["classifiers"], re.M) == supported
    )
    assert re.fullmatch(rf"io\.delta:delta-spark_4\.{lowest}_2\.13:{delta}", PACKAGE)
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    bootstrap = (REPOSITORY / "scripts" / "bootstrap.sh").read_text(encoding="utf-8")
    (java,) = re.findall(r"^JAVA_VERSION_MIN=(\d+)$", bootstrap, re.M)
    processes = re.findall(r"-m pytest -n (\d)", makefile)
    assert set(processes) == {"3"}
    assert "three test processes" in dict(texts())["DEPENDENCIES.md"]
    for text in (readme, makefile):
        assert f"Python 3.{oldest} to 3.{int(beyond) - 1}" in text
        assert f"Java {java} or newer" in text
    for page, text in [*texts(), *((path.name, path.read_text()) for path in (REPOSITORY / "jobs").glob("*.py"))]:
        assert set(re.findall(r"io\.delta:[\w.]+:[\d.]+\d", text)) <= {PACKAGE}, page
        if page != "PLATFORMS.md":  # it names those of platforms, and what older ones lack
            assert set(re.findall(r"\bSpark (\d\.\d)", text)) <= sparks, page
        assert set(re.findall(r"pyspark(?:\[\w+\])?==(\d\.\d)\.\d", text)) <= sparks, page
        assert set(re.findall(r"pyspark(?:\[\w+\])?(>=[\d.]+,<[\d.]+\d)", text)) <= {f">=4.{lowest},<4.{below}"}, page


def test_versions_of_the_format_in_pages_are_those_of_the_code() -> None:
    pages = dict(texts())
    marker = f"version={FORMAT_VERSION}"
    assert f"`{marker}`" in pages["FORMAT.md"]
    assert f'"{marker}"' in pages["ARCHITECTURE.md"]
    assert f"version={OBJECT_FORMAT_VERSION}, store=object" in pages["OBJECT-STORES.md"]
    assert TIERED_FORMAT_VERSION == OBJECT_FORMAT_VERSION
    stated = {int(each) for text in pages.values() for each in re.findall(r"\bversion=(\d+)", text)}
    assert stated == {FORMAT_VERSION, OBJECT_FORMAT_VERSION}


def test_page_with_another_default_is_found() -> None:
    assert STATED.findall("`file.delete.delay.ms`, a minute by default") == [
        ("", "file.delete.delay.ms", "a minute", "")
    ]
    assert STATED.findall("`log.cleaner.dedupe.buffer.size` (128 MiB)") == [
        ("", "log.cleaner.dedupe.buffer.size", "", "128 MiB")
    ]
    assert (as_number("a minute"), as_number("128 MiB"), as_number("latest")) == ("60000", "134217728", "latest")
