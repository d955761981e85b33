"""Where storage plugins put a segment's objects, and how they write them. In reading order:

- segment_objects: the protocol SegmentLayout
- local: Kafka's LocalTieredStorage
- aiven, aiven_manifest: Aiven's plugin
"""
