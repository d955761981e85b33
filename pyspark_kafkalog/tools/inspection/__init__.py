"""Commands that show the state of a log directory.

disk_usage     du, log-dirs: sizes of files and partitions
metadata_log   history, metadata-quorum: the commits and the state of the metadata log
metrics        metrics: Kafka's metrics for Prometheus
report         report: one HTML page
"""
