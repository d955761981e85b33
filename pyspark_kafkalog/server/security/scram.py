"""SCRAM: the server's side of an exchange, the check of a password, and the requests that list and change credentials.

    client-first:  n,,n=<user>,r=<client nonce>
    server-first:  r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client-final:  c=<channel binding>,r=<both nonces>,p=<proof>
    server-final:  v=<signature>

For a user without a credential the exchange continues with one that no password fits, and fails where a wrong password
fails. Its salt depends on the name and a secret of the root only, so asking twice, or another server, gives nothing
away. Its iterations and the form of its salt are those of some of the root's users, as often as users have them. Name
and secret decide which ones; when users are added or removed, they change for few names.

DescribeUserScramCredentials and AlterUserScramCredentials need a permission on the cluster: DESCRIBE, or ALTER. Salts
and keys are never answered. A request's changes are one commit; users whose change Kafka refuses are answered with the
error and leave the others alone.

In names `=2C` stands for a comma and `=3D` for an equals sign.

Source of the rules: RFC 5802, ScramSaslServer and ScramMessages of org.apache.kafka.common.security.scram.internals,
org.apache.kafka.image.ScramImage, org.apache.kafka.controller.ScramControlManager.
The nonce of client-final need only end with both nonces, as in Kafka. Unlike Kafka the server checks that the client's
channel binding is that of its first message, as the RFC demands.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import (
    AuthenticationError,
    DuplicateCredentialError,
    InvalidCredentialError,
    KafkalogError,
    UnknownCredentialError,
    UnsupportedMechanismError,
)
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.users import (
    ITERATIONS_MIN,
    CredentialDeletion,
    CredentialUpsertion,
    ScramCredential,
    ScramCredentials,
    ScramMechanism,
    alter_credentials,
    credential_of,
    salt_of_bits,
)
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
from pyspark_kafkalog.server.event_loop import in_turns

_CLIENT_FIRST: Final = re.compile(
    r"(?P<gs2>[ny],(?:a=(?P<authzid>[^\0,]+))?,)"
    r"(?P<bare>n=(?P<name>(?:[^\0=,]|=2C|=3D)+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]+=[^\0,]*)*)"
)
_CLIENT_FINAL: Final = re.compile(
    r"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]+=[^\0,]*)*),"
    r"p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_TOKEN_BYTES_MAX: Final = 4096
#: A number of 130 bits in digits and letters.
_KAFKAS_SALT: Final = re.compile(rb"[0-9a-z]{20,26}")
_SALT_TEXT: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_DRAWN_MAX: Final = (1 << 64) - 1
_INVALID: Final = "invalid credentials"


class Credentials:
    """The SCRAM credentials of a root's users, with stand-ins for users who have none."""

    def __init__(self, find: Callable[[], ScramCredentials], secret: bytes) -> None:
        """`secret` is the same for all servers of the root, and unknown to clients."""
        self._find = find
        self._secret = secret
        self._kinds: Mapping[_Kind, int] = {}
        self._kinds_of: ScramCredentials | None = None

    def of(self, user: str, mechanism: ScramMechanism) -> tuple[ScramCredential, bool]:
        """The user's credential, and whether it is real."""
        stored = self._find()
        found = stored.get((user, mechanism))
        if found is not None and found.iterations >= ITERATIONS_MIN:
            return found, True
        kinds = {kind: count for kind, count in self._known_kinds(stored).items() if kind.mechanism is mechanism}
        kind = self._drawn(user, kinds) if kinds else _Kind(mechanism, ITERATIONS_MIN, None)
        seed = self._seed(f"{mechanism.sasl_name} {user}")
        return credential_of(mechanism, seed, kind.salt(seed), kind.iterations), False

    def fits(self, user: str, password: str) -> bool:
        """Whether this is the user's password. Takes milliseconds; of several credentials the stronger one decides."""
        mechanism = self._mechanism(user)
        credential, is_real = self.of(user, mechanism)
        salted = mechanism.salted_password(password, credential.salt, credential.iterations)
        made = credential_of(mechanism, salted, credential.salt, credential.iterations)
        return hmac.compare_digest(made.stored_key, credential.stored_key) and is_real

    def _mechanism(self, user: str) -> ScramMechanism:
        """That of the user's stronger credential; without one, a mechanism that users have, which takes its time."""
        for mechanism in (ScramMechanism.SCRAM_SHA_512, ScramMechanism.SCRAM_SHA_256):
            if self.of(user, mechanism)[1]:
                return mechanism
        kinds = self._known_kinds(self._find())
        return self._drawn(user, kinds).mechanism if kinds else ScramMechanism.SCRAM_SHA_256

    def _seed(self, text: str) -> bytes:
        return hmac.digest(self._secret, text.encode(errors="surrogatepass"), "sha512")

    def _known_kinds(self, stored: ScramCredentials) -> Mapping[_Kind, int]:
        """How many users have a credential of each kind."""
        if self._kinds_of is not stored:
            self._kinds = Counter(
                _Kind.of(mechanism, each)
                for (_, mechanism), each in stored.items()
                if each.iterations >= ITERATIONS_MIN
            )
            self._kinds_of = stored
        return self._kinds

    def _drawn(self, user: str, kinds: Mapping[_Kind, int]) -> _Kind:
        """A kind for a name, by weighted rendezvous hashing."""

        def score(kind: _Kind) -> float:
            drawn = int.from_bytes(self._seed(f"{kind} {user}")[:8], "big")
            return -math.log((drawn + 1) / (_DRAWN_MAX + 1)) / kinds[kind]

        return min(kinds, key=score)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a credential shows: iterations, and the form of its salt; `salt_bytes` is None for one as Kafka makes it."""

    mechanism: ScramMechanism
    iterations: int
    salt_bytes: int | None
    is_salt_text: bool = False

    def salt(self, seed: bytes) -> bytes:
        """A salt of this kind."""
        if self.salt_bytes is None:
            return salt_of_bits(int.from_bytes(seed, "big"))
        salt = hashlib.shake_256(seed).digest(self.salt_bytes)
        return bytes(_SALT_TEXT[each % len(_SALT_TEXT)] for each in salt) if self.is_salt_text else salt

    @staticmethod
    def of(mechanism: ScramMechanism, credential: ScramCredential) -> _Kind:
        salt = credential.salt
        salt_bytes = None if _KAFKAS_SALT.fullmatch(salt) else len(salt)
        return _Kind(mechanism, credential.iterations, salt_bytes, is_salt_text=salt.isalnum())


class ScramExchange:
    """One exchange. `user` is the name that the client gave; it is authenticated when `is_complete`."""

    def __init__(self, mechanism: ScramMechanism, credentials: Credentials, server_nonce: str) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._server_nonce = server_nonce
        self._credential: ScramCredential | None = None
        self._is_real = False
        self._gs2 = ""
        self._nonce = ""
        self._messages = ""  # client-first without its header, and server-first
        self.user = ""
        self.is_complete = False

    def evaluate(self, token: bytes) -> bytes:
        """The answer to the client's next message. Raises AuthenticationError, which ends the exchange."""
        if self.is_complete or len(token) > _TOKEN_BYTES_MAX:
            raise AuthenticationError(_INVALID)
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise AuthenticationError(_INVALID) from None
        return (self._first(text) if self._credential is None else self._final(text, self._credential)).encode()

    def _first(self, text: str) -> str:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise AuthenticationError(_INVALID)
        self.user = saslname(match["name"])
        if match["authzid"] is not None and saslname(match["authzid"]) != self.user:
            raise AuthenticationError("Client requested an authorization id that is different from username")
        self._credential, self._is_real = self._credentials.of(self.user, self._mechanism)
        self._gs2 = match["gs2"]
        self._nonce = match["nonce"] + self._server_nonce
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._messages = f"{match['bare']},{answer}"
        return answer

    def _final(self, text: str, credential: ScramCredential) -> str:
        match = _CLIENT_FINAL.fullmatch(text)
        # librdkafka 2.0.2 sends its own nonce once more, before the nonce of both.
        if (
            match is None
            or not match["nonce"].endswith(self._nonce)
            or _decoded(match["binding"]) != self._gs2.encode()
        ):
            raise AuthenticationError(_INVALID)
        mechanism = self._mechanism
        messages = f"{self._messages},{match['without_proof']}".encode()
        signature = mechanism.hmac(credential.stored_key, messages)
        proof = _decoded(match["proof"])
        if len(proof) != len(signature):
            raise AuthenticationError(_INVALID)
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(mechanism.hash(client_key), credential.stored_key)
        if not (is_right and self._is_real):
            raise AuthenticationError(_INVALID)
        self.is_complete = True
        return "v=" + base64.b64encode(mechanism.hmac(credential.server_key, messages)).decode()


def saslname(text: str) -> str:
    """The name that a client has escaped. Raises AuthenticationError for an equals sign that begins no escape."""
    if re.search("=(?!2C|3D)", text):
        raise AuthenticationError(_INVALID)
    return text.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationError(_INVALID) from None


_ERROR_CODES: Final[Mapping[type[KafkalogError], ErrorCode]] = {
    DuplicateCredentialError: ErrorCode.DUPLICATE_RESOURCE,
    InvalidCredentialError: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    UnknownCredentialError: ErrorCode.RESOURCE_NOT_FOUND,
    UnsupportedMechanismError: ErrorCode.UNSUPPORTED_SASL_MECHANISM,
}


async def handle_describe_credentials(
    context: ServerContext, request: Request[DescribeUserScramCredentialsRequest]
) -> Message:
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


async def handle_alter_credentials(
    context: ServerContext, request: Request[AlterUserScramCredentialsRequest]
) -> Message:
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
            _result(user, ErrorCode.NONE, None)
            if error is None
            else _result(user, _ERROR_CODES[type(error)], str(error))
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
