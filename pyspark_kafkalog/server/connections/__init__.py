"""Connections of clients: from the bytes of a client to the handler of its request, and back.

In reading order:

- connection: reads requests ahead, answers in order
- request_bytes: bounds the bytes of requests and responses in memory
- dispatch: from the frame of a request to the pieces of its response
"""
