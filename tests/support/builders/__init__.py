"""Roots, logs, records and files for tests to begin with."""
