"""A log directory on one page: `kafkalog report` gathers facts and writes self-contained HTML.

- gather: reads a log directory into facts
- facts: the contents of a report; what a partition's files say
- root_files: what the root's own files say
- findings: what needs attention
- heavy_keys: the keys with the most records and bytes
- write_history: commits over time and by topic
- maintenance_runs: results of maintenance jobs from their Delta table
- page: the HTML file
"""
