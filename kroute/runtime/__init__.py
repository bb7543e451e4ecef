"""The process: running it to its end, its state directory, its memory."""
