"""What lies in a partition directory and in a log directory's root, one module an artefact; segment and log on top."""
