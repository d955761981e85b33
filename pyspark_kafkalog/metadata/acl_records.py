"""Access control entries as metadata records: one record each, with a random id that the record of a removal names."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

from pyspark_kafkalog.metadata.acl import Acl, check_acl
from pyspark_kafkalog.metadata.bootstrap import random_uuid
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.records import MetadataRecord, record


def add_acls(image: MetadataImage, acls: Collection[Acl], rng: random.Random) -> list[MetadataRecord]:
    """Records of the entries that do not exist yet. Raises InvalidAclError."""
    there = set(image.acls.values())
    records = []
    for acl in acls:
        check_acl(acl)
        if acl not in there:
            there.add(acl)
            records.append(acl_record(random_uuid(rng), acl))
    return records


def remove_acls(acl_ids: Iterable[str]) -> list[MetadataRecord]:
    """Records that remove entries."""
    return [record("RemoveAccessControlEntryRecord", id=acl_id) for acl_id in acl_ids]


def acl_record(acl_id: str, acl: Acl) -> MetadataRecord:
    """The entry as a metadata record; `acl_id` is Kafka's Uuid text."""
    return record(
        "AccessControlEntryRecord",
        id=acl_id,
        resourceType=int(acl.resource_type),
        resourceName=acl.resource_name,
        patternType=int(acl.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permissionType=int(acl.permission),
    )
