"""Who may do what in a log directory, and the function that opens one.

In reading order: authorizer (Kafka's rules), access_control (lists and changes the entries), guarded_root (a root that
checks each operation), open (opens a root, native or a broker's, guarded or not).
"""
