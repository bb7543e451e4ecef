"""The order of real servers, by which the schedulers mh and sh fill their tables."""
