"""Run the controllers on kernel clients that read the kernel and only record writes."""
