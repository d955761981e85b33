"""Who may do what in a log directory, and the function that opens one.

In reading order: access_control (the entries, and what they allow by Kafka's rules), open (opens a root, native or a
broker's; for a principal one that checks each operation).
"""
