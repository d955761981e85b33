"""Kafka's record format v2: batches, records, control records, and conversion to and from Arrow.

In reading order:

    header        the header of a batch as a struct, and its CRC
    reference     whole batches in plain Python: the specification that the compiled code must equal
    control       control records: transaction markers and those of the metadata log
    codecs        compression
    columns       batches as rows of a table, records as columns, in memory
    arrow         columns to and from Arrow
    appendable    tables of any library and rows, as Arrow data to append
    old_formats   messages of formats 0 and 1, converted to batches
    scan          finding batches in a run of bytes, checking CRCs
    decode        batches to columns
    encode        columns to batches
    partitioner   partitions of records
    kernels       the compiled loops of scan, decode and encode
"""
