"""The files of a partition directory other than `.log`, and the small files of a root. In reading order:

partition_listing   the names in a partition directory, by kind
index_file          `.index`, from an offset to a position in the `.log`; `.timeindex`, from a timestamp to an offset
transaction_index   `.txnindex`: aborted transactions
producer_snapshot   `.snapshot`: the last writes of each producer
checkpoint_file     the format of checkpoint files, those with offsets in a root, and `leader-epoch-checkpoint`
marker_files        `meta.properties`, `partition.metadata`, `.kafka_cleanshutdown`, a broker's lock; identity of a root
"""
