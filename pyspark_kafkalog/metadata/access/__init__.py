"""Who may use a log directory, as what and how much: records of Kafka's metadata log about clients.

In reading order:

- acl: access control entries and their records; addresses of clients in one form, and ranges of them
- users: credentials of users, quotas of users, clients and addresses, and their records
"""
