"""The files of a partition directory other than `.log`, and of a root; one module for each kind."""
