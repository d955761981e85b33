"""`kafkalog configs` for users, client ids and hosts: quotas of clients, and SCRAM credentials of users.

The first user of a server with SASL is made here, since no client can log in to make one. Options and output are those
of kafka-configs; changes are validated as by a controller and applied in one commit.

Source of the rules: kafka.admin.ConfigCommand.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from pyspark_kafkalog.config.definitions import format_value
from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.access.client_quotas import (
    CLIENT_ID,
    CLIENT_QUOTAS,
    IP,
    IP_QUOTAS,
    USER,
    QuotaEntity,
    QuotaFilter,
    Quotas,
    alter_quotas,
    find_quotas,
    quota_entity,
)
from pyspark_kafkalog.metadata.access.scram import (
    ITERATIONS_MIN,
    MECHANISMS,
    CredentialDeletion,
    CredentialUpsertion,
    ScramCredentials,
    alter_credentials,
    upsertion,
)
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.root.brokers.image import metadata_of
from pyspark_kafkalog.tools.command import UsageError
from pyspark_kafkalog.tools.output import Tree, notice, output_of
from pyspark_kafkalog.tools.running import open_log_dir
from pyspark_kafkalog.units import printable

#: Entity types of kafka-configs, with those of quotas.
CLIENT_TYPES: Final = {"users": USER, "clients": CLIENT_ID, "ips": IP}
_TITLES: Final = {USER: "user-principal", CLIENT_ID: "client-id", IP: "ip"}
_CREDENTIAL: Final = re.compile(r"(?:iterations=(?P<iterations>-?[0-9]*),)?password=(?P<password>.*)", re.DOTALL)
_DEFAULT: Final = ""

#: Types of entities with their names: "" for the default, None for any.
Named = Mapping[str, str | None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The short options that name users, client ids and hosts."""
    for option, plural in (("user", "users"), ("client", "clients"), ("ip", "ips")):
        parser.add_argument(f"--{option}", metavar="NAME", help=f"for --entity-type {plural} --entity-name NAME")
        parser.add_argument(
            f"--{option}-defaults", action="store_true", help=f"for --entity-type {plural} --entity-default"
        )


def named_entity(options: argparse.Namespace) -> Named | None:
    """The users, client ids or hosts that the options name; None if they name none. Raises UsageError."""
    found: dict[str, str | None] = {}
    for option, entity_type in (("user", USER), ("client", CLIENT_ID), ("ip", IP)):
        name, is_default = getattr(options, option), getattr(options, f"{option}_defaults")
        if name is not None and is_default:
            raise UsageError(f"--{option} and --{option}-defaults name different entities")
        if name is not None or is_default:
            found[entity_type] = _DEFAULT if is_default else name
    if options.entity_type in CLIENT_TYPES:
        if found:
            raise UsageError("--entity-{type,name,default} should not be used with specific entity flags")
        found[CLIENT_TYPES[options.entity_type]] = _DEFAULT if options.entity_default else options.entity_name
    if IP in found and len(found) > 1:
        raise UsageError("Only 'users' and 'clients' entity types may be specified together")
    return found or None


def alter(options: argparse.Namespace, named: Named, add: Mapping[str, str], delete: Collection[str]) -> None:
    """Set and remove quotas, or credentials. Raises InvalidConfigError, UsageError."""
    if None in named.values():
        raise UsageError("An entity name must be specified for every entity type")
    names = {*add, *delete}
    is_user = set(named) == {USER}
    allowed = {*(IP_QUOTAS if IP in named else CLIENT_QUOTAS), *(MECHANISMS if is_user else ())}
    if names - allowed:
        raise InvalidConfigError(f"{', '.join(sorted(names - allowed))}: expected one of {', '.join(sorted(allowed))}")
    log_dir = open_log_dir(options)
    if names & MECHANISMS.keys():
        if names - MECHANISMS.keys():
            raise InvalidConfigError("Cannot alter both quota and SCRAM credential configs simultaneously for 'users'")
        _alter_credentials(log_dir, named[USER] or "", add, delete)
    else:
        _alter_quotas(log_dir, _entity(named), add, delete)
    first = next(iter(named))
    plural = next(each for each, entity_type in CLIENT_TYPES.items() if entity_type == first)
    name = named[first]
    output = output_of(options)
    output.text(
        f"Completed updating config for {plural.removesuffix('s')} {printable(name)}.\n"
        if name
        else f"Completed updating default config for {plural} in the cluster.\n"
    )
    for tree in _trees(log_dir, named):
        output.data(tree)


def _entity(named: Named) -> QuotaEntity:
    return quota_entity([(entity_type, name or None) for entity_type, name in named.items()])


def _alter_quotas(log_dir: LogDir, entity: QuotaEntity, add: Mapping[str, str], delete: Collection[str]) -> None:
    changes: dict[str, float | None] = dict.fromkeys(delete)
    for name, text in add.items():
        try:
            changes[name] = float(text)
        except ValueError:
            raise InvalidConfigError(f"Cannot parse quota configuration value for {name}: {text}") from None

    def build(image: MetadataImage) -> Sequence[MetadataRecord]:
        missing = [each for each in delete if each not in image.client_quotas.get(entity, {})]
        if missing:
            raise InvalidConfigError(f"Invalid config(s): {','.join(missing)}: not set, so there is nothing to delete")
        return alter_quotas(image.client_quotas, entity, changes)

    log_dir.root.native().commit(build, operation="alter client quotas")


def _alter_credentials(log_dir: LogDir, user: str, add: Mapping[str, str], delete: Collection[str]) -> None:
    if not user:
        raise UsageError("The use of --entity-default or --user-defaults is not allowed with User SCRAM Credentials")
    both = sorted(add.keys() & set(delete))
    if both:
        raise InvalidConfigError(f"{', '.join(both)}: cannot be set and deleted at once")
    upsertions = [_upsertion(user, name, text) for name, text in add.items()]
    deletions = [CredentialDeletion(user, MECHANISMS[name]) for name in delete]

    def build(image: MetadataImage) -> Sequence[MetadataRecord]:
        records: list[MetadataRecord] = []
        # One mechanism after the other: a request may name a user once only.
        for made, results in (
            *(alter_credentials(image.scram_credentials, [each], []) for each in deletions),
            *(alter_credentials(image.scram_credentials, [], [each]) for each in upsertions),
        ):
            for error in filter(None, results.values()):
                raise error
            records += made
        return records

    native = log_dir.root.native()
    native.commit(build, operation="alter SCRAM credentials")
    _warn_of_other_password(native.store.image, user, add)


def _warn_of_other_password(image: MetadataImage, user: str, add: Mapping[str, str]) -> None:
    """Say that the password of another mechanism stays valid. SASL PLAIN takes that of the stronger mechanism."""
    others = [name for name, mechanism in MECHANISMS.items() if (user, mechanism) in image.scram_credentials]
    kept = [name for name in others if name not in add]
    if add and kept:
        notice(
            f"kafkalog configs: the password of {', '.join(kept)} of user {user} stays (SASL PLAIN checks that "
            f"of SCRAM-SHA-512 if there is one): set it too, or delete it with --delete-config {','.join(kept)}"
        )


def _upsertion(user: str, mechanism: str, text: str) -> CredentialUpsertion:
    match = _CREDENTIAL.fullmatch(text)
    if match is None:
        # The text holds a password: it is not repeated.
        raise InvalidConfigError(f"Invalid credential property {mechanism}: expected [iterations=N,password=...]")
    iterations = ITERATIONS_MIN if match["iterations"] in (None, "-1", "") else int(match["iterations"])
    if iterations < ITERATIONS_MIN:
        raise InvalidConfigError(
            f"Iterations {iterations} is less than the minimum {ITERATIONS_MIN} required for {mechanism}"
        )
    return upsertion(user, MECHANISMS[mechanism], match["password"], iterations=iterations, rng=random.SystemRandom())


def describe(options: argparse.Namespace, named: Named) -> None:
    """Print the quotas of the entities, and the mechanisms of users."""
    log_dir = open_log_dir(options)
    quotas, credentials = _client_settings(log_dir)
    output = output_of(options)
    for entity, values in _quotas_of(quotas, named):
        texts = ", ".join(f"{key}={format_value(value)}" for key, value in values.items())
        output.text(f"Quota configs for {_title(entity)} are {texts}\n")
    for user, mechanisms in _mechanisms_of(credentials, named):
        texts = ", ".join(f"{name}=iterations={iterations}" for name, iterations in mechanisms.items())
        output.text(f"SCRAM credential configs for user-principal '{printable(user)}' are {texts}\n")
    for tree in _trees(log_dir, named):
        output.data(tree)


def _client_settings(log_dir: LogDir) -> tuple[Quotas, ScramCredentials]:
    metadata = metadata_of(log_dir.root)
    return metadata.client_quotas, metadata.scram_credentials


def _quotas_of(quotas: Quotas, named: Named) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
    exact = {entity_type: name or None for entity_type, name in named.items() if name is not None}
    types = [entity_type for entity_type, name in named.items() if name is None]
    return find_quotas(quotas, QuotaFilter(exact, types, strict=True))


def _mechanisms_of(credentials: ScramCredentials, named: Named) -> Iterator[tuple[str, dict[str, int]]]:
    if set(named) != {USER} or named[USER] == _DEFAULT:
        return
    for user in sorted({user for user, _ in credentials if named[USER] in (None, user)}):
        yield (
            user,
            {
                mechanism.sasl_name: credentials[user, mechanism].iterations
                for mechanism in MECHANISMS.values()
                if (user, mechanism) in credentials
            },
        )


def _title(entity: QuotaEntity) -> str:
    parts = dict(entity)
    return ", ".join(
        f"the default {_TITLES[entity_type]}"
        if parts[entity_type] is None
        else f"{_TITLES[entity_type]} '{printable(str(parts[entity_type]))}'"
        for entity_type in _TITLES
        if entity_type in parts
    )


def _trees(log_dir: LogDir, named: Named) -> Iterator[Tree]:
    """The quotas of the entities, then the mechanisms of users, one object each."""
    quotas, credentials = _client_settings(log_dir)
    for entity, values in _quotas_of(quotas, named):
        yield {"entity": dict(entity), "quotas": dict(values)}
    for user, mechanisms in _mechanisms_of(credentials, named):
        yield {
            "entity": {USER: user},
            "scramCredentials": [
                {"mechanism": name, "iterations": iterations} for name, iterations in mechanisms.items()
            ],
        }
