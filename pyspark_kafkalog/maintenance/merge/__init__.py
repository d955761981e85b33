"""Merge of small closed segments."""
