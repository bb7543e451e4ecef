"""What an installation would meet in a cluster, and the values to install with: `kroute check --cluster`."""
