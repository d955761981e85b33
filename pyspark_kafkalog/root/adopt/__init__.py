"""Convert a broker's directory into a native log directory, in place.

- `plan`: what adoption will do, and what prevents it
- `logs`: recovers the partitions' logs; the transactions that stay open
- `adopt`: carries out the plan, under the locks of a broker and of writers
"""
