"""What others see of a running agent: health, metrics, the status page, Events."""
