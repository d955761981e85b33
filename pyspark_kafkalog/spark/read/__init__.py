"""Batch reads, and what streaming reads share with them."""
