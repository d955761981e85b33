"""The files of a partition directory and of a log directory's root, one module per file format; segments and logs."""
