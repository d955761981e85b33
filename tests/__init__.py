"""Tests by kind: CONTRIBUTING.md says what is where."""
