"""What a client asks first: the APIs, the servers, topics and their leaders, coordinators.

In reading order:

- api_versions: the APIs of this server, and the features of the root
- topics: Metadata, and creating a topic that is asked for
- known_topics: names and ids of topics
- find_coordinator: the server of a group or a transactional id
"""
