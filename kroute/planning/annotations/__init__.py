"""What the annotations of a Service say about how it is served."""
