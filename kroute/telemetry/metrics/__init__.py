"""The metrics: tables of families, and one reading of everything for each scrape."""
