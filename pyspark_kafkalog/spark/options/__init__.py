"""Options of the data source.

- table: every option, with its documentation and parser; ignored and refused settings
- positions: subscriptions, starting and ending positions
- parse: settings of a read or a write from the options that the user gave; the path
"""
