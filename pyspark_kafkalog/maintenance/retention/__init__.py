"""Deletion of old records: by time, by size, and below a given offset."""
