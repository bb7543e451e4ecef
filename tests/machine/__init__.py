"""The lab's machines themselves, booted on this host: what is reported when one fails."""
