"""Maintenance of a log directory while readers and writers continue: retention, cleaner, merge, verification."""
