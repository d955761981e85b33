"""Replicas: a root that follows a live Kafka cluster or another root, byte for byte, and its promotion.

Reading order:

    leader.py          `LeaderEndPoint`: what a follower asks a leader, whatever it is
    partition_state.py one followed partition: what an answer means, and what to do where the logs differ
    events.py          what is reported besides appends
    topics_plan.py     the changes that make topics, configurations and access those of the leader
    follower_state.py  what the threads of a follower share
    fetch_loop.py      the threads that move records: fetchers and a committer; their bound of bytes a second
    follower.py        `Follower`: the controller of it all
    report.py          what happened, how often, and where each partition is; the same for Prometheus
    root_leader.py     another root as a leader, read by whole batches; the follower's own logs as they are committed
    task_leader.py     a leader whose records are fetched ahead by tasks, for a large back-fill
    range_task.py      fetches one range of offsets in a task
    cluster/           a live Kafka cluster as a leader
    metadata_observer.py   keeps a copy of a cluster's metadata log up to date, as an observer of its controllers
    metadata_copy.py       the copy on disk: appended, cut, begun at a snapshot
"""
