"""Repair and rebuilding of derived files."""
