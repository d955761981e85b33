"""Who a client is: by a certificate, or by a password.

In reading order: tls, distinguished_name (the subject of a client certificate), principal_mapping (who that is), scram,
sasl (one connection's authentication), and the handlers of requests: sasl_handlers, credential_handlers.
"""
