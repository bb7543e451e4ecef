"""Answers on the agent's socket for which the counts of telemetry are needed."""
