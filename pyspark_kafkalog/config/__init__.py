"""Topic and broker-level configurations: definitions, defaults, validation, properties files."""
