"""Parts of the plan of a Service that few Services have."""
