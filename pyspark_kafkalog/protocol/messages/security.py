"""Requests and responses, as classes: SaslHandshake, SaslAuthenticate, DescribeAcls, CreateAcls, DeleteAcls,
DescribeClientQuotas, AlterClientQuotas, DescribeUserScramCredentials, AlterUserScramCredentials.

Generated from ../schemas/security.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class SaslHandshakeRequest(ApiMessage):
    """SaslHandshakeRequest: api key 17, versions 0 to 1."""

    mechanism: str = ""


class SaslHandshakeResponse(ApiMessage):
    """SaslHandshakeResponse: api key 17, versions 0 to 1."""

    error_code: int = 0
    mechanisms: tuple[str, ...] = ()


class SaslAuthenticateRequest(ApiMessage):
    """SaslAuthenticateRequest: api key 36, versions 0 to 2."""

    auth_bytes: bytes = b""


class SaslAuthenticateResponse(ApiMessage):
    """SaslAuthenticateResponse: api key 36, versions 0 to 2."""

    error_code: int = 0
    error_message: str | None = ""
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0  # from version 1


class DescribeAclsRequest(ApiMessage):
    """DescribeAclsRequest: api key 29, versions 1 to 3."""

    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0


class AclDescription(Message):
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class DescribeAclsResource(Message):
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    acls: tuple[AclDescription, ...] = ()


class DescribeAclsResponse(ApiMessage):
    """DescribeAclsResponse: api key 29, versions 1 to 3."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    resources: tuple[DescribeAclsResource, ...] = ()


class AclCreation(Message):
    resource_type: int = 0
    resource_name: str = ""
    resource_pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class CreateAclsRequest(ApiMessage):
    """CreateAclsRequest: api key 30, versions 1 to 3."""

    creations: tuple[AclCreation, ...] = ()


class AclCreationResult(Message):
    error_code: int = 0
    error_message: str | None = ""


class CreateAclsResponse(ApiMessage):
    """CreateAclsResponse: api key 30, versions 1 to 3."""

    throttle_time_ms: int = 0
    results: tuple[AclCreationResult, ...] = ()


class DeleteAclsFilter(Message):
    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0


class DeleteAclsRequest(ApiMessage):
    """DeleteAclsRequest: api key 31, versions 1 to 3."""

    filters: tuple[DeleteAclsFilter, ...] = ()


class DeleteAclsMatchingAcl(Message):
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class DeleteAclsFilterResult(Message):
    error_code: int = 0
    error_message: str | None = ""
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = ()


class DeleteAclsResponse(ApiMessage):
    """DeleteAclsResponse: api key 31, versions 1 to 3."""

    throttle_time_ms: int = 0
    filter_results: tuple[DeleteAclsFilterResult, ...] = ()


class ComponentData(Message):
    entity_type: str = ""
    match_type: int = 0
    match: str | None = ""


class DescribeClientQuotasRequest(ApiMessage):
    """DescribeClientQuotasRequest: api key 48, versions 0 to 1."""

    components: tuple[ComponentData, ...] = ()
    strict: bool = False


class EntityData(Message):
    entity_type: str = ""
    entity_name: str | None = ""


class ValueData(Message):
    key: str = ""
    value: float = 0.0


class DescribeClientQuotasResponseEntryData(Message):
    entity: tuple[EntityData, ...] = ()
    values: tuple[ValueData, ...] = ()


class DescribeClientQuotasResponse(ApiMessage):
    """DescribeClientQuotasResponse: api key 48, versions 0 to 1."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    entries: tuple[DescribeClientQuotasResponseEntryData, ...] | None = ()


class OpData(Message):
    key: str = ""
    value: float = 0.0
    remove: bool = False


class AlterClientQuotasRequestEntryData(Message):
    entity: tuple[EntityData, ...] = ()
    ops: tuple[OpData, ...] = ()


class AlterClientQuotasRequest(ApiMessage):
    """AlterClientQuotasRequest: api key 49, versions 0 to 1."""

    entries: tuple[AlterClientQuotasRequestEntryData, ...] = ()
    validate_only: bool = False


class AlterClientQuotasResponseEntryData(Message):
    error_code: int = 0
    error_message: str | None = ""
    entity: tuple[EntityData, ...] = ()


class AlterClientQuotasResponse(ApiMessage):
    """AlterClientQuotasResponse: api key 49, versions 0 to 1."""

    throttle_time_ms: int = 0
    entries: tuple[AlterClientQuotasResponseEntryData, ...] = ()


class UserName(Message):
    name: str = ""


class DescribeUserScramCredentialsRequest(ApiMessage):
    """DescribeUserScramCredentialsRequest: api key 50, version 0."""

    users: tuple[UserName, ...] | None = ()


class CredentialInfo(Message):
    mechanism: int = 0
    iterations: int = 0


class DescribeUserScramCredentialsResult(Message):
    user: str = ""
    error_code: int = 0
    error_message: str | None = ""
    credential_infos: tuple[CredentialInfo, ...] = ()


class DescribeUserScramCredentialsResponse(ApiMessage):
    """DescribeUserScramCredentialsResponse: api key 50, version 0."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: tuple[DescribeUserScramCredentialsResult, ...] = ()


class ScramCredentialDeletion(Message):
    name: str = ""
    mechanism: int = 0


class ScramCredentialUpsertion(Message):
    name: str = ""
    mechanism: int = 0
    iterations: int = 0
    salt: bytes = b""
    salted_password: bytes = b""


class AlterUserScramCredentialsRequest(ApiMessage):
    """AlterUserScramCredentialsRequest: api key 51, version 0."""

    deletions: tuple[ScramCredentialDeletion, ...] = ()
    upsertions: tuple[ScramCredentialUpsertion, ...] = ()


class AlterUserScramCredentialsResult(Message):
    user: str = ""
    error_code: int = 0
    error_message: str | None = ""


class AlterUserScramCredentialsResponse(ApiMessage):
    """AlterUserScramCredentialsResponse: api key 51, version 0."""

    throttle_time_ms: int = 0
    results: tuple[AlterUserScramCredentialsResult, ...] = ()
