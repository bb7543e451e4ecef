"""The metrics: tables of families, and one reading of all values for each scrape."""
