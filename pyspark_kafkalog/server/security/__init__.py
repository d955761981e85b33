"""Who connects to the server, what a client may do, and how much of it: TLS, SASL, access control, quotas, limits.

In reading order:

- tls, certificates: encrypted connections; the principal of a client certificate
- sasl, scram: authentication by password; the credentials of SCRAM
- acls: decides by access control entries, and the requests that list and change them
- quotas: token buckets of clients, and the requests that list and change quotas
- connection_policy: all of it, for one server, with the limits of connections
"""
