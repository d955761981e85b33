"""DescribeUserScramCredentials and AlterUserScramCredentials.

Both need a permission on the cluster: DESCRIBE, or ALTER. Salts and keys are never answered. A request's changes are
one commit; users whose change Kafka refuses are answered with the error and leave the others alone.

Source of the rules: org.apache.kafka.image.ScramImage, org.apache.kafka.controller.ScramControlManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark_kafkalog.errors import (
    DuplicateCredentialError,
    InvalidCredentialError,
    KafkalogError,
    UnknownCredentialError,
    UnsupportedMechanismError,
)
from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.access.scram import (
    CredentialDeletion,
    CredentialUpsertion,
    ScramCredentials,
    ScramMechanism,
    alter_credentials,
)
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from pyspark_kafkalog.server.context import READ_ONLY, Request, ServerContext
from pyspark_kafkalog.server.turns import in_turns

_CODES: Final[Mapping[type[KafkalogError], ErrorCode]] = {
    DuplicateCredentialError: ErrorCode.DUPLICATE_RESOURCE,
    InvalidCredentialError: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    UnknownCredentialError: ErrorCode.RESOURCE_NOT_FOUND,
    UnsupportedMechanismError: ErrorCode.UNSUPPORTED_SASL_MECHANISM,
}


async def describe(context: ServerContext, request: Request[DescribeUserScramCredentialsRequest]) -> Message:
    """DescribeUserScramCredentials: mechanisms and iterations of the users named, or of all."""
    if not context.guard.allows(request.session, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeUserScramCredentialsResponse(error_code=error, error_message=error.message)
    native = context.root.native()
    await context.run(native.refresh)
    credentials = native.store.image.scram_credentials
    users = request.body.users
    names = [each.name for each in users or ()] or sorted({user for user, _ in credentials})
    results = [_description(credentials, name, times) async for name, times in in_turns(Counter(names).items())]
    return DescribeUserScramCredentialsResponse(error_message=None, results=tuple(results))


def _description(credentials: ScramCredentials, user: str, times: int) -> DescribeUserScramCredentialsResult:
    if times > 1:
        return DescribeUserScramCredentialsResult(
            user=user,
            error_code=ErrorCode.DUPLICATE_RESOURCE,
            error_message=f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
        )
    infos = tuple(
        CredentialInfo(mechanism=mechanism, iterations=found.iterations)
        for mechanism in ScramMechanism
        if (found := credentials.get((user, mechanism))) is not None
    )
    if not infos:
        return DescribeUserScramCredentialsResult(
            user=user,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message=f"Attempt to describe a user credential that does not exist: {user}",
        )
    return DescribeUserScramCredentialsResult(user=user, error_message=None, credential_infos=infos)


async def alter(context: ServerContext, request: Request[AlterUserScramCredentialsRequest]) -> Message:
    """AlterUserScramCredentials: set or remove credentials; the client has salted the passwords."""
    body = request.body
    deletions = [CredentialDeletion(each.name, each.mechanism) for each in body.deletions]
    upsertions = [
        CredentialUpsertion(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
        for each in body.upsertions
    ]
    if not context.guard.allows(request.session, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        return _refused(body, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if context.native is None:
        return _refused(body, ErrorCode.POLICY_VIOLATION, READ_ONLY)
    results: dict[str, KafkalogError | None] = {}

    def build(image: MetadataImage) -> Sequence[MetadataRecord]:
        records, outcome = alter_credentials(image.scram_credentials, deletions, upsertions)
        results.clear()
        results.update(outcome)
        return records

    native = context.native
    await context.run(lambda: native.commit(build, operation="alter SCRAM credentials"))
    return AlterUserScramCredentialsResponse(
        results=tuple(
            _result(user, ErrorCode.NONE, None) if error is None else _result(user, _CODES[type(error)], str(error))
            for user, error in results.items()
        )
    )


def _refused(body: AlterUserScramCredentialsRequest, code: ErrorCode, message: str | None = None) -> Message:
    users = dict.fromkeys([*(each.name for each in body.deletions), *(each.name for each in body.upsertions)])
    return AlterUserScramCredentialsResponse(
        results=tuple(_result(user, code, message or code.message) for user in users)
    )


def _result(user: str, code: ErrorCode, message: str | None) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(user=user, error_code=code, error_message=message)
