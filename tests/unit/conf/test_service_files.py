"""Units, cron lines, alert rules and the container recipe in conf/: their commands, options and metrics exist."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path

import pytest
from builders.report_roots import lively_root
from kafkalog_command import Command
from repository import REPOSITORY

from pyspark_kafkalog.tools.main import COMMANDS, command_parser

CONF = REPOSITORY / "conf"
SERVICES = sorted((CONF / "systemd").glob("*.service"))
RECIPES = sorted((CONF / "container").glob("Containerfile*"))
TIMERS = sorted((CONF / "systemd").glob("*.timer"))
KNOWN_COMMANDS = {name for group in COMMANDS.values() for name in group}
HARDENING = {
    "UMask": "0027",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectControlGroups": "yes",
    "ProtectClock": "yes",
    "ProtectHostname": "yes",
    "ProtectProc": "invisible",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "LockPersonality": "yes",
    "RemoveIPC": "yes",
    "CapabilityBoundingSet": "",
    "SystemCallArchitectures": "native",
    "SystemCallFilter": "@system-service",
}
#: Metrics that Prometheus makes itself.
MADE_BY_PROMETHEUS = {"up"}


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


def check_command(line: str) -> None:
    """Fails unless the `kafkalog` command line is one that the command takes."""
    line = line.replace("${KAFKALOG_ROOT}", "/data/log").replace("$KAFKALOG_ROOT", "/data/log")
    program, command, *arguments = shlex.split(line)
    assert program in ("/opt/kafkalog/.venv/bin/kafkalog", "kafkalog")
    assert command in KNOWN_COMMANDS
    command_parser(command).parse_args(arguments)


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_service_runs_valid_kafkalog_command(path: Path) -> None:
    service = unit(path)["Service"]
    check_command(service["ExecStart"])
    assert service["User"] == "kafkalog"
    assert service["EnvironmentFile"] == "/etc/kafkalog/kafkalog.env"


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_service_writes_nothing_but_its_own_and_gets_no_privileges(path: Path) -> None:
    parsed = unit(path)
    service = parsed["Service"]
    assert {name: service[name] for name in HARDENING} == HARDENING
    assert service["ReadWritePaths"] == parsed["Unit"]["RequiresMountsFor"]
    assert "MemoryDenyWriteExecute" not in service  # numba and Java compile while they run
    for directory in ("CacheDirectory", "StateDirectory"):
        assert (f"{directory}Mode" in service) == (directory in service)


@pytest.mark.parametrize("path", TIMERS, ids=lambda path: path.name)
def test_timer_starts_oneshot_service(path: Path) -> None:
    assert unit(path)["Timer"]["OnCalendar"]
    assert unit(path.with_suffix(".service"))["Service"]["Type"] == "oneshot"


def test_every_service_is_started_by_timer_or_at_boot() -> None:
    for path in SERVICES:
        assert path.with_suffix(".timer") in TIMERS or unit(path).has_section("Install"), path.name


def test_environment_file_sets_variables_that_services_use() -> None:
    lines = (CONF / "systemd" / "kafkalog.env").read_text(encoding="utf-8").splitlines()
    defined = {line.partition("=")[0] for line in lines if line and not line.startswith("#")}
    used = {name for path in SERVICES for name in re.findall(r"\$\{(\w+)\}", path.read_text(encoding="utf-8"))}
    assert used
    assert used <= defined


def test_cron_lines_run_valid_commands_by_absolute_path() -> None:
    lines = [line for line in (CONF / "cron" / "kafkalog").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    settings = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))
    jobs = [line for line in lines if line not in {f"{name}={value}" for name, value in settings.items()}]
    assert len(jobs) >= 3
    for job in jobs:
        *_, command = job.split(maxsplit=6)
        program, _, rest = command.partition(" ")
        assert settings[program.removeprefix("$")].startswith("/")
        check_command("kafkalog " + re.split(r" 2?>", rest)[0])


def test_every_metric_of_alert_rules_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    lively_root(root)
    served = set(re.findall(r"^(\w+)(?:\{.*\})? ", Command("metrics", root, capsys)("--once"), re.M))
    rules = (CONF / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    expressions = re.findall(r"^ +expr: (.*)$", rules, re.M)
    assert len(expressions) == len(re.findall(r"- alert:", rules)) >= 5
    for expression in expressions:
        asked = set(re.findall(r"\b(?:kafka|kafkalog)_\w+|\bup\b", expression))
        assert asked
        assert asked <= served | MADE_BY_PROMETHEUS
        assert expression.count("(") == expression.count(")")


def test_scrape_configuration_has_port_of_metrics_service() -> None:
    (port,) = re.findall(
        r"--metrics-listen [\d.]+:(\d+)", (CONF / "systemd" / "kafkalog-metrics.service").read_text(encoding="utf-8")
    )
    assert f'"127.0.0.1:{port}"' in (CONF / "prometheus" / "scrape.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_container_recipe_runs_valid_kafkalog_commands(path: Path) -> None:
    recipe = path.read_text(encoding="utf-8")
    (warm_up,) = re.findall(r"^RUN (kafkalog [\w-]+)", recipe, re.M)
    check_command(warm_up)
    (image, named) = re.findall(r"^#     docker build -t ([\w-]+) -f conf/container/(\S+) \.$", recipe, re.M)[0]
    assert named == path.name
    (example,) = re.findall(rf"docker run .* {image} (\w+ --path \S+)$", recipe, re.M)
    check_command(f"kafkalog {example}")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_container_has_a_versioned_base_and_a_user_of_its_own(path: Path) -> None:
    recipe = path.read_text(encoding="utf-8")
    (base,) = re.findall(r"^FROM (\S+)$", recipe, re.M)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", base)
    steps = re.findall(r"^([A-Z]+) (.*)$", recipe, re.M)
    (user,) = (value for step, value in steps if step == "USER")
    assert user not in ("root", "0")
    assert f"--shell /usr/sbin/nologin {user}" in recipe
    assert [step for step, _ in steps][-3:] == ["USER", "ENTRYPOINT", "CMD"]
    assert not re.search(r"chmod.*(777|\+w|a\+rwx)", recipe)


@pytest.mark.parametrize(("name", "has_spark"), [("Containerfile", True), ("Containerfile.serve", False)])
def test_container_has_spark_and_java_or_neither(name: str, has_spark: bool) -> None:
    recipe = (CONF / "container" / name).read_text(encoding="utf-8")
    setup = configparser.ConfigParser()
    setup.read(CONF.parent / "setup.cfg")
    (extras,) = re.findall(r"pip install --no-cache-dir '/tmp/source\[([\w,-]+)\]'", recipe)
    assert set(extras.split(",")) <= set(setup["options.extras_require"])
    assert ("spark" in extras.split(",")) == ("openjdk" in recipe) == has_spark


def test_services_of_compose_file_run_valid_commands_in_the_small_image() -> None:
    text = (CONF / "container" / "compose.yaml").read_text(encoding="utf-8")
    commands = {}
    for name, body in re.findall(r"^  (\w+):\n((?:    .*\n)+)", text.partition("\nservices:\n")[2], re.M):
        (command,) = re.findall(r"^    command: (\[.*\])$", body, re.M)
        commands[name] = json.loads(command)
        check_command(shlex.join(["kafkalog", *commands[name]]))
    assert {name: command[0] for name, command in commands.items()} == {"serve": "serve", "follow": "follow"}
    (dockerfile,) = re.findall(r"^    dockerfile: (\S+)$", text, re.M)
    assert CONF.parent / dockerfile == CONF / "container" / "Containerfile.serve"
    assert {command[command.index("--path") + 1] for command in commands.values()} == set(
        re.findall(r"^    - \$\{KAFKALOG_ROOT:[^}]*\}:(\S+)$", text, re.M)
    )


def test_server_of_compose_file_is_published_on_this_machine_only_and_asked_for_its_health() -> None:
    text = (CONF / "container" / "compose.yaml").read_text(encoding="utf-8")
    (command,) = (json.loads(each) for each in re.findall(r"^    command: (\[\"serve\".*\])$", text, re.M))
    (published,) = (json.loads(each) for each in re.findall(r"^    ports: (\[.*\])$", text, re.M))
    (check,) = (json.loads(each) for each in re.findall(r"^      test: (\[.*\])$", text, re.M))
    options = dict(zip(command[1::2], command[2::2], strict=False))
    listened = options["--listen"].rpartition(":")[2]
    assert published == [f"127.0.0.1:{listened}:{listened}"]
    assert f"http://{options['--metrics-listen']}/health" in check[-1]
    compile(check[-1], "healthcheck", "exec")


def test_build_context_is_what_the_package_is_built_of_without_keys() -> None:
    lines = (CONF.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    sent = {line[1:] for line in patterns if line.startswith("!")}
    assert sent == {
        "LICENSE",
        "README.md",
        "conf",
        "jobs",
        "pyproject.toml",
        "pyspark_kafkalog",
        "setup.cfg",
        "setup.py",
    }
    assert all((CONF.parent / each).exists() for each in sent)
    assert {"**/*.pem", "**/*.key", "**/*.p12", "**/.env"} <= set(patterns)
    named = re.findall(
        r"= (?:file: )?((?:jobs|conf)[\w/.*]*|README.md|LICENSE)$", (CONF.parent / "setup.cfg").read_text(), re.M
    )
    assert {each.split("/")[0] for each in named} <= sent


def test_example_of_a_container_publishes_an_open_server_on_this_machine_only() -> None:
    for page in (CONF.parent / "docs").glob("*.md"):
        for command in re.findall(r"docker run [^\n]*(?:\\\n[^\n]*)*", page.read_text(encoding="utf-8")):
            published = re.findall(r"(?:-p|--publish) (\S+)", command)
            assert "--insecure" not in command or all(each.startswith("127.0.0.1:") for each in published), page.name
