"""The security settings of a server's listener, and whether it may listen where it shall."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark_kafkalog.server.security.authentication.principal_mapping import PrincipalMapping
from pyspark_kafkalog.server.security.authentication.sasl import SaslSettings
from pyspark_kafkalog.server.security.authentication.tls import ClientAuth, TlsSettings
from pyspark_kafkalog.server.security.limits import ConnectionSettings
from pyspark_kafkalog.server.security.listener import check_listener, check_mechanisms, is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """The security of a listener. Without `tls` and `sasl` it serves anybody, so it listens on this machine only."""

    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    is_insecure: bool = False
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)

    @property
    def _has_client_certificates(self) -> bool:
        return self.tls is not None and self.tls.client_auth == ClientAuth.REQUIRED

    def relies_on_entries(self, host: str) -> bool:
        """Whether other machines reach the host and need not say who they are: entries alone keep anybody out."""
        is_authenticated = self.sasl is not None or self._has_client_certificates
        return not (is_authenticated or self.is_insecure or is_loopback(host))

    def check(self, host: str) -> None:
        """Raises InvalidOptionError if a server with these settings must not listen on the host, or cannot be."""
        check_listener(
            host,
            has_tls=self.tls is not None,
            has_client_certificates=self._has_client_certificates,
            has_sasl=self.sasl is not None,
            is_insecure=self.is_insecure,
        )
        if self.tls is not None:
            PrincipalMapping.parse(self.tls.principal_mapping)
        if self.sasl is not None:
            check_mechanisms(self.sasl.mechanisms, has_tls=self.tls is not None, is_insecure=self.is_insecure)
