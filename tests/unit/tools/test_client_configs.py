"""`kafkalog configs` for users, client ids and hosts prints and changes what kafka-configs does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kafkalog_command import Command

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.users import ScramMechanism
from pyspark_kafkalog.server.security.scram import Credentials
from pyspark_kafkalog.tools.main import main


@pytest.fixture
def tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    LogDir.create(tmp_path / "log")
    return Command("configs", tmp_path / "log", capsys)


def test_first_user_is_made_without_a_server_and_his_password_fits(
    tool: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tool("--user", "ann", "--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=se,cr=et]")
    assert out == "Completed updating config for user ann.\n"
    second = ["--user", "ann", "--alter", "--add-config", "SCRAM-SHA-512=[password=secret]"]
    assert main(["configs", "--path", str(tool.root), *second]) == 0
    capsys.readouterr()
    stored = LogDir.open(tool.root).root.native().store.image.scram_credentials
    assert stored["ann", ScramMechanism.SCRAM_SHA_256].iterations == 8192
    del_512 = {key: value for key, value in stored.items() if key[1] == ScramMechanism.SCRAM_SHA_256}
    assert Credentials(lambda: del_512, b"").fits("ann", "se,cr=et")
    assert Credentials(lambda: stored, b"").fits("ann", "secret")
    out = tool("--entity-type", "users", "--describe")
    assert out == (
        "SCRAM credential configs for user-principal 'ann' are SCRAM-SHA-256=iterations=8192, "
        "SCRAM-SHA-512=iterations=4096\n"
    )
    tool("--user", "ann", "--alter", "--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512")
    assert tool("--entity-type", "users", "--describe") == ""


def test_quotas_are_set_described_and_deleted(tool: Command) -> None:
    tool("--user", "ann", "--client", "app", "--alter", "--add-config", "producer_byte_rate=1024")
    out = tool("--user-defaults", "--alter", "--add-config", "consumer_byte_rate=10000000,request_percentage=12.5")
    assert out == "Completed updating default config for users in the cluster.\n"
    tool("--entity-type", "ips", "--entity-name", "10.0.0.1", "--alter", "--add-config", "connection_creation_rate=5")
    assert tool("--entity-type", "users", "--describe") == (
        "Quota configs for the default user-principal are consumer_byte_rate=1.0E7, request_percentage=12.5\n"
    )
    assert tool("--user", "ann", "--client", "app", "--describe") == (
        "Quota configs for user-principal 'ann', client-id 'app' are producer_byte_rate=1024.0\n"
    )
    assert (
        tool("--ip", "10.0.0.1", "--describe") == "Quota configs for ip '10.0.0.1' are connection_creation_rate=5.0\n"
    )
    assert json.loads(tool("--ip", "10.0.0.1", "--describe", "--output", "json")) == {
        "entity": {"ip": "10.0.0.1"},
        "quotas": {"connection_creation_rate": 5.0},
    }
    tool("--user-defaults", "--alter", "--delete-config", "consumer_byte_rate")
    assert tool("--user-defaults", "--describe") == (
        "Quota configs for the default user-principal are request_percentage=12.5\n"
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--user", "ann", "--add-config", "SCRAM-SHA-256=[iterations=100,password=x]"), "minimum 4096"),
        (("--user", "ann", "--add-config", "SCRAM-SHA-256=[iterations=99999,password=x]"), "Too many"),
        (("--user", "ann", "--add-config", "SCRAM-SHA-256=hush"), "expected [iterations=N,password=...]"),
        (("--user", "ann", "--add-config", "SCRAM-SHA-1=[password=x]"), "SCRAM-SHA-1"),
        (("--user", "ann", "--delete-config", "SCRAM-SHA-256"), "does not exist"),
        (("--user", "ann", "--add-config", "SCRAM-SHA-256=[password=x],producer_byte_rate=1"), "simultaneously"),
        (("--user-defaults", "--add-config", "SCRAM-SHA-256=[password=x]"), "not allowed"),
        (("--client", "app", "--add-config", "SCRAM-SHA-256=[password=x]"), "SCRAM-SHA-256"),
        (("--user", "ann", "--add-config", "producer_byte_rate=fast"), "Cannot parse"),
        (("--user", "ann", "--add-config", "producer_byte_rate=-1"), "greater than 0"),
        (("--user", "ann", "--delete-config", "producer_byte_rate"), "nothing to delete"),
        (("--ip", "::1", "--user", "ann", "--add-config", "connection_creation_rate=1"), "may be specified together"),
        (("--entity-type", "users", "--add-config", "producer_byte_rate=1"), "entity name"),
        (("--user", "ann"), "At least one"),
    ],
)
def test_change_that_kafka_configs_refuses_is_refused(tool: Command, arguments: tuple[str, ...], reason: str) -> None:
    error = tool.fails("--alter", *arguments)
    assert reason in error
    assert "hush" not in error
    assert LogDir.open(tool.root).root.native().store.image.scram_credentials == {}


def test_password_that_stays_valid_under_another_mechanism_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(LogDir.create(tmp_path / "log").path)

    def set_password(*mechanisms: str) -> str:
        added = ",".join(f"{each}=[password=new]" for each in mechanisms)
        assert main(["configs", "--path", root, "--user", "ann", "--alter", "--add-config", added]) == 0
        return capsys.readouterr().err

    assert set_password("SCRAM-SHA-256") == ""
    assert "the password of SCRAM-SHA-256 of user ann stays" in set_password("SCRAM-SHA-512")
    assert set_password("SCRAM-SHA-256", "SCRAM-SHA-512") == ""
