"""Options of the data source."""
