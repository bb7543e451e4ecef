"""What is measured, a file for each part of an agent's life. bench/report/rows.py names the figures for readers."""
