"""Copies of a log directory, and its return to a broker."""
