"""The process itself: its run from start to end, its state directory, its memory."""
