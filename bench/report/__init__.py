"""A result for readers: medians with their spread, goals, tables in Markdown, charts, and their place in the page."""
