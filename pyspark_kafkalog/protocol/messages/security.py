"""Requests and responses, as classes: SaslHandshake, SaslAuthenticate, DescribeAcls, CreateAcls, DeleteAcls,
DescribeClientQuotas, AlterClientQuotas, DescribeUserScramCredentials, AlterUserScramCredentials.

Generated from ../schemas/security.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas; `unknown_tags` are the tagged fields that the schema does not
have, as (tag, bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import UnknownTags
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class SaslHandshakeRequest(ApiMessage):
    """SaslHandshakeRequest: api key 17, versions 0 to 1."""

    mechanism: str = ""
    unknown_tags: UnknownTags = ()


class SaslHandshakeResponse(ApiMessage):
    """SaslHandshakeResponse: api key 17, versions 0 to 1."""

    error_code: int = 0
    mechanisms: tuple[str, ...] = ()
    unknown_tags: UnknownTags = ()


class SaslAuthenticateRequest(ApiMessage):
    """SaslAuthenticateRequest: api key 36, versions 0 to 2."""

    auth_bytes: bytes = b""
    unknown_tags: UnknownTags = ()


class SaslAuthenticateResponse(ApiMessage):
    """SaslAuthenticateResponse: api key 36, versions 0 to 2."""

    error_code: int = 0
    error_message: str | None = ""
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0  # from version 1
    unknown_tags: UnknownTags = ()


class DescribeAclsRequest(ApiMessage):
    """DescribeAclsRequest: api key 29, versions 1 to 3."""

    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0
    unknown_tags: UnknownTags = ()


class AclDescription(Message):
    """A struct of DescribeAclsResponse."""

    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0
    unknown_tags: UnknownTags = ()


class DescribeAclsResource(Message):
    """A struct of DescribeAclsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "acls": AclDescription,
    }

    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    acls: tuple[AclDescription, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeAclsResponse(ApiMessage):
    """DescribeAclsResponse: api key 29, versions 1 to 3."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "resources": DescribeAclsResource,
    }

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    resources: tuple[DescribeAclsResource, ...] = ()
    unknown_tags: UnknownTags = ()


class AclCreation(Message):
    """A struct of CreateAclsRequest."""

    resource_type: int = 0
    resource_name: str = ""
    resource_pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0
    unknown_tags: UnknownTags = ()


class CreateAclsRequest(ApiMessage):
    """CreateAclsRequest: api key 30, versions 1 to 3."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "creations": AclCreation,
    }

    creations: tuple[AclCreation, ...] = ()
    unknown_tags: UnknownTags = ()


class AclCreationResult(Message):
    """A struct of CreateAclsResponse."""

    error_code: int = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = ()


class CreateAclsResponse(ApiMessage):
    """CreateAclsResponse: api key 30, versions 1 to 3."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "results": AclCreationResult,
    }

    throttle_time_ms: int = 0
    results: tuple[AclCreationResult, ...] = ()
    unknown_tags: UnknownTags = ()


class DeleteAclsFilter(Message):
    """A struct of DeleteAclsRequest."""

    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0
    unknown_tags: UnknownTags = ()


class DeleteAclsRequest(ApiMessage):
    """DeleteAclsRequest: api key 31, versions 1 to 3."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "filters": DeleteAclsFilter,
    }

    filters: tuple[DeleteAclsFilter, ...] = ()
    unknown_tags: UnknownTags = ()


class DeleteAclsMatchingAcl(Message):
    """A struct of DeleteAclsResponse."""

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0
    unknown_tags: UnknownTags = ()


class DeleteAclsFilterResult(Message):
    """A struct of DeleteAclsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "matching_acls": DeleteAclsMatchingAcl,
    }

    error_code: int = 0
    error_message: str | None = ""
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = ()
    unknown_tags: UnknownTags = ()


class DeleteAclsResponse(ApiMessage):
    """DeleteAclsResponse: api key 31, versions 1 to 3."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "filter_results": DeleteAclsFilterResult,
    }

    throttle_time_ms: int = 0
    filter_results: tuple[DeleteAclsFilterResult, ...] = ()
    unknown_tags: UnknownTags = ()


class ComponentData(Message):
    """A struct of DescribeClientQuotasRequest."""

    entity_type: str = ""
    match_type: int = 0
    match: str | None = ""
    unknown_tags: UnknownTags = ()


class DescribeClientQuotasRequest(ApiMessage):
    """DescribeClientQuotasRequest: api key 48, versions 0 to 1."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "components": ComponentData,
    }

    components: tuple[ComponentData, ...] = ()
    strict: bool = False
    unknown_tags: UnknownTags = ()


class EntityData(Message):
    """A struct of DescribeClientQuotasResponse."""

    entity_type: str = ""
    entity_name: str | None = ""
    unknown_tags: UnknownTags = ()


class ValueData(Message):
    """A struct of DescribeClientQuotasResponse."""

    key: str = ""
    value: float = 0.0
    unknown_tags: UnknownTags = ()


class DescribeClientQuotasResponseEntryData(Message):
    """A struct of DescribeClientQuotasResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "entity": EntityData,
        "values": ValueData,
    }

    entity: tuple[EntityData, ...] = ()
    values: tuple[ValueData, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeClientQuotasResponse(ApiMessage):
    """DescribeClientQuotasResponse: api key 48, versions 0 to 1."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "entries": DescribeClientQuotasResponseEntryData,
    }

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    entries: tuple[DescribeClientQuotasResponseEntryData, ...] | None = ()
    unknown_tags: UnknownTags = ()


class OpData(Message):
    """A struct of AlterClientQuotasRequest."""

    key: str = ""
    value: float = 0.0
    remove: bool = False
    unknown_tags: UnknownTags = ()


class AlterClientQuotasRequestEntryData(Message):
    """A struct of AlterClientQuotasRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "entity": EntityData,
        "ops": OpData,
    }

    entity: tuple[EntityData, ...] = ()
    ops: tuple[OpData, ...] = ()
    unknown_tags: UnknownTags = ()


class AlterClientQuotasRequest(ApiMessage):
    """AlterClientQuotasRequest: api key 49, versions 0 to 1."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "entries": AlterClientQuotasRequestEntryData,
    }

    entries: tuple[AlterClientQuotasRequestEntryData, ...] = ()
    validate_only: bool = False
    unknown_tags: UnknownTags = ()


class AlterClientQuotasResponseEntryData(Message):
    """A struct of AlterClientQuotasResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "entity": EntityData,
    }

    error_code: int = 0
    error_message: str | None = ""
    entity: tuple[EntityData, ...] = ()
    unknown_tags: UnknownTags = ()


class AlterClientQuotasResponse(ApiMessage):
    """AlterClientQuotasResponse: api key 49, versions 0 to 1."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "entries": AlterClientQuotasResponseEntryData,
    }

    throttle_time_ms: int = 0
    entries: tuple[AlterClientQuotasResponseEntryData, ...] = ()
    unknown_tags: UnknownTags = ()


class UserName(Message):
    """A struct of DescribeUserScramCredentialsRequest."""

    name: str = ""
    unknown_tags: UnknownTags = ()


class DescribeUserScramCredentialsRequest(ApiMessage):
    """DescribeUserScramCredentialsRequest: api key 50, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "users": UserName,
    }

    users: tuple[UserName, ...] | None = ()
    unknown_tags: UnknownTags = ()


class CredentialInfo(Message):
    """A struct of DescribeUserScramCredentialsResponse."""

    mechanism: int = 0
    iterations: int = 0
    unknown_tags: UnknownTags = ()


class DescribeUserScramCredentialsResult(Message):
    """A struct of DescribeUserScramCredentialsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "credential_infos": CredentialInfo,
    }

    user: str = ""
    error_code: int = 0
    error_message: str | None = ""
    credential_infos: tuple[CredentialInfo, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeUserScramCredentialsResponse(ApiMessage):
    """DescribeUserScramCredentialsResponse: api key 50, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "results": DescribeUserScramCredentialsResult,
    }

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: tuple[DescribeUserScramCredentialsResult, ...] = ()
    unknown_tags: UnknownTags = ()


class ScramCredentialDeletion(Message):
    """A struct of AlterUserScramCredentialsRequest."""

    name: str = ""
    mechanism: int = 0
    unknown_tags: UnknownTags = ()


class ScramCredentialUpsertion(Message):
    """A struct of AlterUserScramCredentialsRequest."""

    name: str = ""
    mechanism: int = 0
    iterations: int = 0
    salt: bytes = b""
    salted_password: bytes = b""
    unknown_tags: UnknownTags = ()


class AlterUserScramCredentialsRequest(ApiMessage):
    """AlterUserScramCredentialsRequest: api key 51, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "deletions": ScramCredentialDeletion,
        "upsertions": ScramCredentialUpsertion,
    }

    deletions: tuple[ScramCredentialDeletion, ...] = ()
    upsertions: tuple[ScramCredentialUpsertion, ...] = ()
    unknown_tags: UnknownTags = ()


class AlterUserScramCredentialsResult(Message):
    """A struct of AlterUserScramCredentialsResponse."""

    user: str = ""
    error_code: int = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = ()


class AlterUserScramCredentialsResponse(ApiMessage):
    """AlterUserScramCredentialsResponse: api key 51, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "results": AlterUserScramCredentialsResult,
    }

    throttle_time_ms: int = 0
    results: tuple[AlterUserScramCredentialsResult, ...] = ()
    unknown_tags: UnknownTags = ()
