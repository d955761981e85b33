"""A log directory on one page: `kafkalog report` gathers facts and writes self-contained HTML."""
