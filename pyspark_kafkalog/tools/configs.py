"""`kafkalog configs`: describe and change the configuration of topics, groups, clients, or a whole log directory.

Options and output are those of kafka-configs, with --path in place of --bootstrap-server. Changes are validated as by
a controller and applied in one commit. Each change names one topic (--entity-name or --topic), or one group, which
need not exist: consumer.session.timeout.ms and consumer.heartbeat.interval.ms of its members. A log directory is one
node, so broker-level settings (log.*, num.partitions, ...) are stored for all brokers: --entity-default, or
--broker-defaults. They are the defaults of topics that do not set a value themselves. In a Kafka broker's directory,
the configurations of topics can be described if it contains the metadata log; in a copy of a cluster's metadata log
(kafkalog follow --metadata-path) also what was set for brokers while they ran. Quotas of users, client ids and hosts,
and SCRAM credentials of users, are for clients of kafkalog serve. Errors are printed in one line, with exit code 1.

examples:
  kafkalog configs --path /data/log --entity-type topics --entity-name orders --describe --all
  kafkalog configs --path /data/log --topic orders --alter --add-config 'segment.ms=1,cleanup.policy=[compact,delete]'
  kafkalog configs --path /data/log --topic orders --alter --delete-config retention.ms,cleanup.policy
  kafkalog configs --path /data/log --broker-defaults --alter --add-config log.segment.bytes=268435456
  kafkalog configs --path /data/log --group readers --alter --add-config consumer.session.timeout.ms=60000
  kafkalog configs --path /data/log --user ann --alter --add-config 'SCRAM-SHA-256=[iterations=8192,password=secret]'
  kafkalog configs --path /data/log --user ann --alter --add-config producer_byte_rate=1048576
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.broker import BROKER_CONFIGS
from pyspark_kafkalog.config.definitions import VALUE_CHARS_MAX, format_value
from pyspark_kafkalog.config.entries import (
    ConfigEntry,
    ConfigSource,
    broker_entries,
    group_entries,
    own_topic_entries,
    set_broker_entries,
    topic_entries,
)
from pyspark_kafkalog.errors import InvalidConfigError, UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.image import ALL_BROKERS, MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.users import (
    CLIENT_ID,
    CLIENT_QUOTAS,
    IP,
    IP_QUOTAS,
    ITERATIONS_MIN,
    MECHANISMS,
    USER,
    CredentialDeletion,
    CredentialUpsertion,
    QuotaEntity,
    QuotaFilter,
    Quotas,
    ScramCredentials,
    alter_credentials,
    alter_quotas,
    find_quotas,
    quota_entity,
    upsertion,
)
from pyspark_kafkalog.root.brokers.image import BrokerMetadata, metadata_of
from pyspark_kafkalog.root.brokers.quorum import node_id_of
from pyspark_kafkalog.storage.artefacts.marker_files import read_properties_file
from pyspark_kafkalog.storage.names import validate_topic_name
from pyspark_kafkalog.tools.command import UsageError, add_path
from pyspark_kafkalog.tools.output import Tree, add_output, notice, output_of
from pyspark_kafkalog.tools.running import metadata_of_copy, open_log_dir
from pyspark_kafkalog.units import printable

_TOPICS: Final = "topics"
_BROKERS: Final = "brokers"
_GROUPS: Final = "groups"

#: A comma or an equals sign is a separator unless it is between square brackets.
_OUTSIDE_BRACKETS: Final = r"(?=[^\]]*(?:\[|$))"
_SETTING_SEPARATOR = re.compile("," + _OUTSIDE_BRACKETS)
_EQUALS = re.compile(r"\s*=\s*" + _OUTSIDE_BRACKETS)
_CONFIG_NAME = re.compile(r"[a-zA-Z0-9._-]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of kafka-configs that apply to a log directory, `--path` and `--output`."""
    add_path(parser)
    actions = parser.add_mutually_exclusive_group(required=True)
    actions.add_argument("--alter", action="store_true", help="set configurations, or reset them to their defaults")
    actions.add_argument("--describe", action="store_true", help="print configurations that are set")
    parser.add_argument("--all", action="store_true", help="also print configurations at their defaults (--describe)")
    parser.add_argument(
        "--entity-type", choices=(_TOPICS, _BROKERS, _GROUPS, *_CLIENT_TYPES), help="what is configured"
    )
    parser.add_argument(
        "--entity-name", metavar="NAME", help="the topic, the group, the number of the node (--describe), the client"
    )
    parser.add_argument(
        "--entity-default", action="store_true", help="settings for all brokers, or for clients without their own"
    )
    parser.add_argument("--topic", metavar="NAME", help="for --entity-type topics --entity-name NAME")
    parser.add_argument("--group", metavar="ID", help="for --entity-type groups --entity-name ID")
    parser.add_argument("--broker", metavar="ID", help="for --entity-type brokers --entity-name ID")
    _add_clients(parser)
    parser.add_argument("--broker-defaults", action="store_true", help="for --entity-type brokers --entity-default")
    parser.add_argument(
        "--add-config",
        action="append",
        default=[],
        metavar="K=V[,K=[V,V]]",
        help="configurations to set; square brackets keep the commas of a value together",
    )
    parser.add_argument("--add-config-file", metavar="FILE", type=Path, help="a properties file of those to set")
    parser.add_argument(
        "--delete-config",
        action="append",
        default=[],
        metavar="K[,K]",
        help="configurations to reset to their defaults",
    )
    add_output(parser, "one object a line, by entity")


def run(options: argparse.Namespace) -> int:
    """Run the command; prints to sys.stdout."""
    client = _named_clients(options)
    if client is not None:
        _check_changes(options)
        if options.alter:
            _alter_clients(options, client, _configs_to_add(options), _configs_to_delete(options))
        else:
            _describe_clients(options, client)
        return 0
    entity_type, name = _entity(options)
    if options.alter:
        _alter(options, entity_type, name)
    else:
        _describe(options, entity_type, name)
    return 0


def _entity(options: argparse.Namespace) -> tuple[str, str | None]:
    """The entity that the options name: its type and its name ("" for all brokers, None for every existing entity)."""
    short = [
        (entity_type, name)
        for entity_type, name in (
            (_TOPICS, options.topic),
            (_GROUPS, options.group),
            (_BROKERS, options.broker),
            (_BROKERS, ALL_BROKERS if options.broker_defaults else None),
        )
        if name is not None
    ]
    if short and (options.entity_type or options.entity_name is not None or options.entity_default):
        raise UsageError("--entity-{type,name,default} should not be used in conjunction with specific entity flags")
    if len(short) > 1 or (options.entity_default and options.entity_name is not None):
        raise UsageError("only one entity can be named")
    if not short and options.entity_type is None:
        raise UsageError(
            "--entity-type topics, groups or brokers, --topic, --group, --broker or --broker-defaults is needed"
        )
    entity_type, name = (options.entity_type, options.entity_name) if not short else short[0]
    if options.entity_default:
        name = ALL_BROKERS
    _check(options, entity_type, name)
    return entity_type, name


def _check(options: argparse.Namespace, entity_type: str, name: str | None) -> None:
    if entity_type in (_TOPICS, _GROUPS) and name == ALL_BROKERS:
        raise UsageError(f"an empty --entity-name or --entity-default can't be used with {entity_type}: name one")
    if entity_type == _BROKERS and name and not re.fullmatch(r"[0-9]+", name):
        raise UsageError(f"The entity name for brokers must be a valid integer broker id, but it is: {name}")
    if options.alter and entity_type in (_TOPICS, _GROUPS) and name is None:
        raise UsageError(f"An entity name must be specified with --alter of {entity_type}")
    if options.alter and entity_type == _BROKERS and name != ALL_BROKERS:
        raise UsageError("a log directory is one node, its settings are kept for all brokers: use --entity-default")
    _check_changes(options)


def _check_changes(options: argparse.Namespace) -> None:
    changes = bool(options.add_config or options.add_config_file or options.delete_config)
    if options.describe and changes:
        raise UsageError("--add-config, --add-config-file and --delete-config can't be used with --describe")
    if options.alter and options.all:
        raise UsageError("--all can't be used with --alter")
    if options.alter and not changes:
        raise UsageError(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
        )
    if options.add_config and options.add_config_file:
        raise UsageError("Only one of --add-config or --add-config-file must be specified")


def _alter(options: argparse.Namespace, entity_type: str, name: str | None) -> None:
    assert name is not None
    add = _configs_to_add(options)
    delete = _configs_to_delete(options)
    log_dir = open_log_dir(options)
    current = _set_configs(log_dir, entity_type, name)
    missing = [each for each in delete if each not in current]
    if missing:
        raise InvalidConfigError(f"Invalid config(s): {','.join(missing)}: not set, so there is nothing to delete")
    if entity_type == _BROKERS:
        log_dir.alter_broker_configs(add=add, delete=delete)
    elif entity_type == _GROUPS:
        log_dir.alter_group_configs(name, add=add, delete=delete)
    else:
        log_dir.alter_topic(name, add=add, delete=delete)
    default = "default config for brokers in the cluster"
    what = default if entity_type == _BROKERS else f"config for {entity_type.removesuffix('s')} {printable(name)}"
    output_of(options).show(
        name,
        lambda each: _tree(entity_type, each, _entries(log_dir, entity_type, each, None, includes_defaults=False)),
        lambda _: f"Completed updating {what}.\n",
    )


def _set_configs(log_dir: LogDir, entity_type: str, name: str) -> Mapping[str, str]:
    """What is set for the entity itself."""
    if entity_type == _BROKERS:
        return log_dir.broker_configs()
    if entity_type == _GROUPS:
        return log_dir.group_configs().get(name, {})
    return log_dir.topic(name, readable_only=True).configs


def _configs_to_delete(options: argparse.Namespace) -> list[str]:
    return [each.strip() for text in options.delete_config for each in text.split(",")]


def _configs_to_add(options: argparse.Namespace) -> dict[str, str]:
    if options.add_config_file is not None:
        configs = read_properties_file(options.add_config_file)
    else:
        configs = parse_settings(options.add_config)
    for name, value in configs.items():
        if not _CONFIG_NAME.fullmatch(name):
            raise InvalidConfigError(f"Invalid character found for config key: {name}")
        if len(value) > VALUE_CHARS_MAX:
            raise InvalidConfigError(f"the value of {name} has {len(value)} characters, at most {VALUE_CHARS_MAX} may")
    return configs


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """The settings in `texts`, each "k=v,k=[v,v]". Raises InvalidConfigError for what kafka-configs refuses."""
    configs = {}
    for text in texts:
        for setting in _SETTING_SEPARATOR.split(text):
            pair = _EQUALS.split(setting)
            if len(pair) != 2:
                raise InvalidConfigError(
                    f'Invalid entity config {setting!r}: all configs to be added must be in the format "key=val" or '
                    '"key=[val1,val2]" to group values which contain commas.'
                )
            configs[pair[0].strip()] = pair[1].replace("[", "").replace("]", "").strip()
    return configs


def _describe(options: argparse.Namespace, entity_type: str, name: str | None) -> None:
    log_dir = open_log_dir(options)
    metadata = metadata_of_copy(log_dir)
    if not log_dir.root.has_broker_configs and (
        options.all or entity_type == _GROUPS or (entity_type == _BROKERS and metadata is None)
    ):
        raise UsageError(
            f"{options.path} is a Kafka broker's directory, which does not contain its server.properties: "
            "only the topics' own configurations can be described, without --all"
        )
    output = output_of(options)
    for each in [name] if name is not None else _names(log_dir, entity_type, metadata):
        entries = _entries(log_dir, entity_type, each, metadata, includes_defaults=options.all)
        if each == ALL_BROKERS:
            heading = "Default configs for brokers in the cluster are:\n"
        else:
            kind = "All" if options.all else "Dynamic"
            heading = f"{kind} configs for {entity_type.removesuffix('s')} {printable(each)} are:\n"
        output.text(heading + "".join(f"  {printable(str(entry))}\n" for entry in entries))
        output.data(_tree(entity_type, each, entries))


def _names(log_dir: LogDir, entity_type: str, metadata: BrokerMetadata | None) -> list[str]:
    if metadata is not None:
        return sorted(metadata.topics) if entity_type == _TOPICS else _configured_brokers(metadata)
    if entity_type == _TOPICS:
        return list(log_dir.topics())
    if entity_type == _GROUPS:
        return sorted(log_dir.group_configs())
    node_id = node_id_of(log_dir.root)
    return [ALL_BROKERS] if node_id is None else [str(node_id), ALL_BROKERS]


def _entries(
    log_dir: LogDir, entity_type: str, name: str, metadata: BrokerMetadata | None, *, includes_defaults: bool
) -> list[ConfigEntry]:
    if metadata is not None:
        return _entries_of_topic(metadata, name) if entity_type == _TOPICS else _entries_of_broker(metadata, name)
    if entity_type == _BROKERS:
        if name == ALL_BROKERS:
            return set_broker_entries(log_dir.broker_configs())
        if name != str(node_id_of(log_dir.root)):
            raise UnknownTopicError(f"The broker '{name}' doesn't exist and doesn't have dynamic config.")
        return broker_entries(log_dir.broker_configs()) if includes_defaults else []
    if entity_type == _GROUPS:
        entries = group_entries(log_dir.group_configs().get(name, {}), log_dir.broker_configs())
        return entries if includes_defaults else [each for each in entries if each.is_set]
    if validate_topic_name(name) not in log_dir.topics():
        raise UnknownTopicError(f"The topic '{name}' doesn't exist and doesn't have dynamic config.")
    overrides = log_dir.topic(name, readable_only=True).configs
    if not log_dir.root.has_broker_configs:
        return own_topic_entries(overrides)
    entries = topic_entries(overrides, log_dir.broker_configs())
    return entries if includes_defaults else [each for each in entries if each.is_set_by_topic]


def _tree(entity_type: str, name: str, entries: list[ConfigEntry]) -> Tree:
    """The entity with its configurations; all brokers together have no name."""
    return {
        "entityType": entity_type,
        "entityName": name if name != ALL_BROKERS else None,
        "configs": [each.to_json() for each in entries],
    }


# Configurations in a copy of a cluster's metadata log


def _configured_brokers(metadata: BrokerMetadata) -> list[str]:
    """The brokers with settings of their own, then all together."""
    own = sorted(name for name, settings in metadata.broker_configs.items() if name != ALL_BROKERS and settings)
    return [*own, ALL_BROKERS]


def _entries_of_broker(metadata: BrokerMetadata, name: str) -> list[ConfigEntry]:
    """The settings of a broker, or of all of them, that were changed while they ran.

    Those that this package does not know are left out: passwords of key stores are among them.
    """
    settings = metadata.broker_configs.get(name, {})
    known = {key: value for key, value in settings.items() if key in BROKER_CONFIGS}
    is_default = name == ALL_BROKERS
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG if is_default else ConfigSource.DYNAMIC_BROKER_CONFIG
    return set_broker_entries(known, source)


def _entries_of_topic(metadata: BrokerMetadata, name: str) -> list[ConfigEntry]:
    """The topic's own configurations. Raises UnknownTopicError."""
    if name not in metadata.topics:
        raise UnknownTopicError(f"The topic '{name}' doesn't exist and doesn't have dynamic config.")
    return own_topic_entries(metadata.topic_configs.get(name, {}))


# Quotas of users, client ids and hosts, and SCRAM credentials of users. The first user of a server with SASL is made
# here, since no client can log in to make one. Source of the rules: kafka.admin.ConfigCommand.


#: Entity types of kafka-configs, with those of quotas.
_CLIENT_TYPES: Final = {"users": USER, "clients": CLIENT_ID, "ips": IP}
_TITLES: Final = {USER: "user-principal", CLIENT_ID: "client-id", IP: "ip"}
_CREDENTIAL: Final = re.compile(r"(?:iterations=(?P<iterations>-?[0-9]*),)?password=(?P<password>.*)", re.DOTALL)
_DEFAULT: Final = ""

#: Types of entities with their names: "" for the default, None for any.
_Named = Mapping[str, str | None]


def _add_clients(parser: argparse.ArgumentParser) -> None:
    """The short options that name users, client ids and hosts."""
    for option, plural in (("user", "users"), ("client", "clients"), ("ip", "ips")):
        parser.add_argument(f"--{option}", metavar="NAME", help=f"for --entity-type {plural} --entity-name NAME")
        parser.add_argument(
            f"--{option}-defaults", action="store_true", help=f"for --entity-type {plural} --entity-default"
        )


def _named_clients(options: argparse.Namespace) -> _Named | None:
    """The users, client ids or hosts that the options name; None if they name none. Raises UsageError."""
    found: dict[str, str | None] = {}
    for option, entity_type in (("user", USER), ("client", CLIENT_ID), ("ip", IP)):
        name, is_default = getattr(options, option), getattr(options, f"{option}_defaults")
        if name is not None and is_default:
            raise UsageError(f"--{option} and --{option}-defaults name different entities")
        if name is not None or is_default:
            found[entity_type] = _DEFAULT if is_default else name
    if options.entity_type in _CLIENT_TYPES:
        if found:
            raise UsageError("--entity-{type,name,default} should not be used with specific entity flags")
        found[_CLIENT_TYPES[options.entity_type]] = _DEFAULT if options.entity_default else options.entity_name
    if IP in found and len(found) > 1:
        raise UsageError("Only 'users' and 'clients' entity types may be specified together")
    return found or None


def _alter_clients(options: argparse.Namespace, named: _Named, add: Mapping[str, str], delete: Collection[str]) -> None:
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
        _alter_quotas(log_dir, _quota_entity(named), add, delete)
    first = next(iter(named))
    plural = next(each for each, entity_type in _CLIENT_TYPES.items() if entity_type == first)
    name = named[first]
    output = output_of(options)
    output.text(
        f"Completed updating config for {plural.removesuffix('s')} {printable(name)}.\n"
        if name
        else f"Completed updating default config for {plural} in the cluster.\n"
    )
    for tree in _trees(log_dir, named):
        output.data(tree)


def _quota_entity(named: _Named) -> QuotaEntity:
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


def _describe_clients(options: argparse.Namespace, named: _Named) -> None:
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


def _quotas_of(quotas: Quotas, named: _Named) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
    exact = {entity_type: name or None for entity_type, name in named.items() if name is not None}
    types = [entity_type for entity_type, name in named.items() if name is None]
    return find_quotas(quotas, QuotaFilter(exact, types, strict=True))


def _mechanisms_of(credentials: ScramCredentials, named: _Named) -> Iterator[tuple[str, dict[str, int]]]:
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


def _trees(log_dir: LogDir, named: _Named) -> Iterator[Tree]:
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
