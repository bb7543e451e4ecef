"""The lab's machines themselves, booted on this host: what becomes of one that comes to nothing."""
