"""What notebooks use: topics and logs as Arrow, pandas, polars and DuckDB tables, drawn and explained."""
