"""One segment: its log file, its indexes, recovery, reads."""
