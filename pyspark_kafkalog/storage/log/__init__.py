"""The log of one partition: its state, its writer, its readers. In reading order:

log_state         where a log starts and ends, as a commit records it
read_only         where a log starts and ends, as a broker's files show it
unified_log       the log open for its only writer: append, roll, flush
loader            opens a log in the state of a commit, or a directory as a starting broker does, with recovery
producers         the producer state, its checks and snapshots
producer_replay   rebuilds producer state from a snapshot and the batches after it
leader_append     checks what clients send, its sequences and transactions too, and gives it offsets
follower          appends of a follower, and what it deletes and truncates
reader            reads a partition while others write and clean it
extent_search     finds the extent of an offset beside jobs that replace extents, and reads whole batches of it
isolation         what read_committed leaves out
"""
