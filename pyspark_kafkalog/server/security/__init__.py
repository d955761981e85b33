"""Who connects to the server, what he may do, and how much of it: TLS, SASL, access control, quotas, limits.

In reading order: listener (which addresses may be listened on), the package authentication (who a client is),
guard (decides by access control entries), quotas (token buckets), request_time (what request_percentage counts), limits
(of connections and bytes), bounded_log (for lines that clients cause), gate (all of it, for one server), then the
handlers of requests: acl_handlers, quota_handlers.
"""
