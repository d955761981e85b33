"""One server process: its parts, its metrics, and the other processes on the same machine.

In reading order:

- assembly: puts the parts of a server together
- workers: several server processes on one machine
- metrics: what the server has done, under Kafka's names
- status_page: metrics and health over HTTP
"""
