"""The handlers of SASL, access control entries, SCRAM credentials and quotas, by API."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.context import Handler
from pyspark_kafkalog.server.security import quota_handlers
from pyspark_kafkalog.server.security.acl_handlers import AclHandlers
from pyspark_kafkalog.server.security.authentication import credential_handlers
from pyspark_kafkalog.server.security.authentication.sasl import SaslAuthenticator
from pyspark_kafkalog.server.security.authentication.sasl_handlers import SaslHandlers
from pyspark_kafkalog.server.security.guard import AclGuard


def handlers(guard: AclGuard, sasl: SaslAuthenticator | None) -> Mapping[ApiKey, Handler]:
    """The handlers of a server with `guard`, on a listener that authenticates by `sasl`; None: by nothing or TLS."""
    by_sasl = SaslHandlers(sasl)
    acls = AclHandlers(guard)
    return {
        ApiKey.SASL_HANDSHAKE: by_sasl.handshake,
        ApiKey.SASL_AUTHENTICATE: by_sasl.authenticate,
        ApiKey.DESCRIBE_ACLS: acls.describe,
        ApiKey.CREATE_ACLS: acls.create,
        ApiKey.DELETE_ACLS: acls.delete,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: credential_handlers.describe,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: credential_handlers.alter,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: quota_handlers.describe,
        ApiKey.ALTER_CLIENT_QUOTAS: quota_handlers.alter,
    }
