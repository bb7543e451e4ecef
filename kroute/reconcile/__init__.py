"""The frame of all controllers: desired state, stages, retries, the ledger, and the loop they share."""
