"""The metadata log that a broker's directory holds."""
