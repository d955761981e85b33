"""`kafkalog acls`: list, add and remove access control entries.

Options and output are those of kafka-acls, with --path in place of --bootstrap-server. Entries apply to programs that
open the log directory with a principal: LogDir.open(path, principal="User:ann"), the option principal of the data
source. They only guard against mistakes: any program that can read the files can bypass them, so file permissions are
the security boundary. The entries in a broker's metadata log can be listed, and are kept when its directory is adopted.

examples:
  kafkalog acls --path /data/log --add --allow-principal User:ann --operation Read --topic orders
  kafkalog acls --path /data/log --add --allow-principal User:etl --producer --topic r --resource-pattern-type prefixed
  kafkalog acls --path /data/log --list --topic orders --resource-pattern-type match
  kafkalog acls --path /data/log --remove --topic orders --force
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from pyspark_kafkalog.metadata.acl import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    canonical_host,
    check_acl,
)
from pyspark_kafkalog.security.access_control import AccessControl
from pyspark_kafkalog.storage.names import check_principal
from pyspark_kafkalog.tools.command import UsageError, add_path
from pyspark_kafkalog.tools.output import Output, Tree, add_output, output_of
from pyspark_kafkalog.tools.running import open_log_dir
from pyspark_kafkalog.units import printable

_OPERATIONS: Final = {each.name.replace("_", "").lower(): each for each in AclOperation}
#: Options that name resources, with the type of each.
_RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "delegation_token": ResourceType.DELEGATION_TOKEN,
    "user_principal": ResourceType.USER,
}
_PRODUCER_ON_TOPICS: Final = (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE)
_PRODUCER_ON_IDS: Final = (AclOperation.WRITE, AclOperation.DESCRIBE)
_CONSUMER_ON_TOPICS: Final = (AclOperation.READ, AclOperation.DESCRIBE)
_CONSUMER_ON_GROUPS: Final = (AclOperation.READ,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of kafka-acls that apply to a log directory, `--path` and `--output`."""
    add_path(parser)
    actions = parser.add_mutually_exclusive_group(required=True)
    actions.add_argument("--add", action="store_true", help="add entries")
    actions.add_argument("--remove", action="store_true", help="remove entries")
    actions.add_argument("--list", action="store_true", help="list the entries, those of the resources named if any")
    for name, what in (
        ("--topic", "topic; * for all"),
        ("--group", "consumer group; * for all"),
        ("--transactional-id", "transactional id; * for all"),
        ("--delegation-token", "delegation token; stored for brokers, has no effect here"),
        ("--user-principal", "owner of delegation tokens; stored for brokers, has no effect here"),
    ):
        parser.add_argument(name, action="append", default=[], metavar="NAME", help=f"{what}; may be repeated")
    parser.add_argument("--cluster", action="store_true", help="the log directory as a whole")
    parser.add_argument(
        "--resource-pattern-type",
        type=str.lower,
        default="literal",
        choices=[each.name.lower() for each in PatternType],
        help="how names are matched (%(default)s); --list and --remove also take any, and match: all that apply",
    )
    parser.add_argument(
        "--operation", action="append", default=[], metavar="OP", help="operation (All); may be repeated"
    )
    for permission in ("allow", "deny"):
        parser.add_argument(f"--{permission}-principal", action="append", default=[], metavar="TYPE:NAME")
        parser.add_argument(
            f"--{permission}-host",
            action="append",
            default=[],
            metavar="HOST",
            help="address, or range such as 10.0.0.0/8 (default: *)",
        )
    parser.add_argument(
        "--principal", action="append", default=[], metavar="TYPE:NAME", help="list only entries of these principals"
    )
    parser.add_argument(
        "--producer", action="store_true", help="the permissions of a producer: write, describe, create"
    )
    parser.add_argument(
        "--consumer", action="store_true", help="the permissions of a consumer: read, describe, read of groups"
    )
    parser.add_argument("--idempotent", action="store_true", help="with --producer: idempotent writes too")
    parser.add_argument("--force", action="store_true", help="remove without asking")
    add_output(parser, "one object a line, by entry")


def run(options: argparse.Namespace) -> int:
    """Run the command; prints the result to sys.stdout."""
    _check_options(options)
    output = output_of(options)
    if options.list:
        _list(options, output)
    elif options.add:
        _add(options, output)
    else:
        _remove(options, output)
    return 0


def _check_options(options: argparse.Namespace) -> None:
    if options.list and (options.producer or options.consumer or _gives_principals(options)):
        raise UsageError("--list takes none of --producer, --consumer, --allow-principal, --deny-principal and hosts")
    if options.producer or options.consumer:
        role = "--producer" if options.producer else "--consumer"
        if options.operation or options.deny_principal or options.deny_host:
            raise UsageError(
                f"{role} implies the operations and permits: no --operation, --deny-principal, --deny-host"
            )
        if not options.topic:
            raise UsageError(f"with {role} you must specify a --topic")
    if options.consumer and not options.group:
        raise UsageError("with --consumer you must specify a --topic and a --group")
    if options.idempotent and not options.producer:
        raise UsageError("--idempotent needs --producer")
    if options.principal and not options.list:
        raise UsageError("--principal needs --list")
    for principal in (*options.principal, *options.allow_principal, *options.deny_principal):
        check_principal(principal)


def _gives_principals(options: argparse.Namespace) -> bool:
    return bool(options.allow_principal or options.deny_principal or options.allow_host or options.deny_host)


# The entries that the options describe


def _resources(options: argparse.Namespace, *, required: bool) -> list[AclFilter]:
    """The resources that the options name, as filters with no other criteria."""
    pattern_type = PatternType[options.resource_pattern_type.upper()]
    found = [
        AclFilter(kind, name.strip(), pattern_type)
        for option, kind in _RESOURCES.items()
        for name in getattr(options, option)
    ]
    if pattern_type == PatternType.LITERAL and (options.cluster or options.idempotent):
        found.append(AclFilter(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    if required and not found:
        raise UsageError("you must name a resource: --topic, --cluster, --group or --transactional-id")
    return found


def _entries(options: argparse.Namespace) -> list[tuple[AclFilter, list[AclFilter]]]:
    """The entries that the options describe, for each named resource."""
    return [
        (resource, [replace(resource, **entry) for entry in _permissions(options, _operations(options, resource))])
        for resource in _resources(options, required=True)
    ]


def _operations(options: argparse.Namespace, resource: AclFilter) -> set[AclOperation]:
    if not options.producer and not options.consumer:
        return {_operation(name) for name in options.operation or ["All"]}
    found: set[AclOperation] = set()
    if options.producer:
        found.update(
            {
                ResourceType.TOPIC: _PRODUCER_ON_TOPICS,
                ResourceType.TRANSACTIONAL_ID: _PRODUCER_ON_IDS,
                ResourceType.CLUSTER: (AclOperation.IDEMPOTENT_WRITE,) if options.idempotent else (),
            }.get(resource.resource_type, ())
        )
    if options.consumer:
        found.update(
            {ResourceType.TOPIC: _CONSUMER_ON_TOPICS, ResourceType.GROUP: _CONSUMER_ON_GROUPS}.get(
                resource.resource_type, ()
            )
        )
    return found


def _operation(name: str) -> AclOperation:
    found = _OPERATIONS.get(name.strip().replace("_", "").lower())
    if found is None:
        raise UsageError(f"unknown operation {name}; known are {', '.join(map(_pascal, AclOperation))}")
    return found


def _permissions(options: argparse.Namespace, operations: set[AclOperation]) -> list[dict[str, Any]]:
    """The fields of one entry for each combination of principal, host and operation."""
    return [
        {"principal": principal.strip(), "host": host.strip(), "operation": operation, "permission": permission}
        for permission, principals, hosts in (
            (PermissionType.ALLOW, options.allow_principal, options.allow_host),
            (PermissionType.DENY, options.deny_principal, options.deny_host),
        )
        for principal, operation, host in itertools.product(principals, sorted(operations), hosts or [WILDCARD])
    ]


def _acl(entry: AclFilter) -> Acl:
    assert entry.resource_name is not None
    assert entry.principal is not None
    assert entry.host is not None
    assert entry.operation is not None
    assert entry.permission is not None
    return Acl(
        entry.resource_type,
        entry.resource_name,
        entry.pattern_type,
        entry.principal,
        canonical_host(entry.host),
        entry.operation,
        entry.permission,
    )


# Changes and queries


def _add(options: argparse.Namespace, output: Output) -> None:
    if options.resource_pattern_type not in ("literal", "prefixed"):
        raise UsageError(f"--resource-pattern-type {options.resource_pattern_type} is not for adding entries")
    if not options.allow_principal and not options.deny_principal:
        raise UsageError("you must specify one of --allow-principal and --deny-principal to add entries")
    control = open_log_dir(options).access_control()
    by_resource = [(resource, [_acl(entry) for entry in entries]) for resource, entries in _entries(options)]
    acls = [acl for _, entries in by_resource for acl in entries]
    for acl in acls:
        check_acl(acl)
    for resource, entries in by_resource:
        if entries:
            output.text(_entries_text(f"Adding ACLs for resource `{_resource_text(resource)}`: \n ", entries))
    control.add(acls)
    for acl in acls:
        output.data(_tree(acl))


def _list(options: argparse.Namespace, output: Output) -> None:
    control = open_log_dir(options).access_control()
    acls = _matching(control, _resources(options, required=False))
    if not options.principal:
        output.show_all(acls, _tree, _current_text)
    for principal in options.principal:
        output.text(f"ACLs for principal `{printable(principal)}`\n")
        output.show_all([acl for acl in acls if acl.principal == principal], _tree, _current_text)


def _remove(options: argparse.Namespace, output: Output) -> None:
    control = open_log_dir(options).access_control()
    removed: list[Acl] = []
    for resource, entries in _entries(options):
        if entries:
            listed = "\n".join(f"\t{_entry_text(each)}" for each in entries)
            question = f"Are you sure you want to remove ACLs: \n {listed}\n from resource filter"
        else:
            question = "Are you sure you want to delete all ACLs for resource filter"
        if options.force or _says_yes(f"{question} `{_resource_text(resource)}`? (y/n)"):
            for each in entries or [resource]:
                removed += control.remove(each)
    for acl in removed:
        output.data(_tree(acl))


def _says_yes(question: str) -> bool:
    sys.stderr.write(question + "\n")
    return sys.stdin.readline().strip().lower() == "y"


def _matching(control: AccessControl, resources: Iterable[AclFilter]) -> list[Acl]:
    """The entries of the resources; without resources, all entries."""
    chosen = list(resources)
    if not chosen:
        return control.entries()
    return sorted({acl for resource in chosen for acl in control.entries(resource)})


# Forms of the output


def _current_text(acls: Iterable[Acl]) -> Iterator[str]:
    for resource, entries in itertools.groupby(acls, key=lambda acl: acl.pattern):
        yield _entries_text(f"Current ACLs for resource `{_resource_text(resource)}`:\n", entries)


def _entries_text(heading: str, entries: Iterable[Acl]) -> str:
    lines = "\n".join(f"\t{_entry_text(acl)}" for acl in entries)
    return f"{heading}{lines}\n\n"


def _resource_text(resource: AclFilter) -> str:
    return (
        f"ResourcePattern(resourceType={resource.resource_type.name}, name={printable(str(resource.resource_name))}, "
        f"patternType={resource.pattern_type.name})"
    )


def _entry_text(entry: Acl | AclFilter) -> str:
    assert entry.operation is not None
    assert entry.permission is not None
    return (
        f"(principal={printable(str(entry.principal))}, host={printable(str(entry.host))}, "
        f"operation={entry.operation.name}, permissionType={entry.permission.name})"
    )


def _tree(acl: Acl) -> Tree:
    return {
        "resourceType": acl.resource_type.name,
        "name": acl.resource_name,
        "patternType": acl.pattern_type.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permissionType": acl.permission.name,
    }


def _pascal(operation: AclOperation) -> str:
    return operation.name.title().replace("_", "")
