"""Verification of a log directory."""
