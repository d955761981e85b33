"""Who connects to the server, what he may do, and how much of it: TLS, SASL, access control, quotas, limits.

In reading order: settings and listener (the settings of a listener, and which addresses may be listened on), tls,
distinguished_name (the subject of a client certificate), principal_mapping (who that is), scram, sasl (one connection's
authentication), guard (decides by access control entries), quotas (token buckets), request_time (what
request_percentage counts), limits (of connections and bytes), bounded_log (what strangers can cause, logged a bounded
number of times), gate (all of it between a socket and the handlers), then the handlers of requests: sasl_handlers,
acl_handlers, credential_handlers, quota_handlers, and their table in handlers.
"""
