"""A log directory on one page: `kafkalog report` gathers facts and writes self-contained HTML.

- gather: reads a log directory into facts, and the keys with the most records and bytes from a sample
- facts: the contents of a report; what a partition's files say, or the image of an object store
- findings: what needs attention
- history: commits over time, and results of maintenance jobs
- page: the HTML file
- maintenance: the methods of `LogDir` for jobs, export and the report, with results that show themselves
"""
