"""What a running agent exposes: health, metrics, the status page, Events."""
