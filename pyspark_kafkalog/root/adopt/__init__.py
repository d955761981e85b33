"""Convert a broker's directory into a native log directory, in place."""
