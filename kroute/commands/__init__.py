"""Commands that need every part of kroute: the watchers to see what should be, the kernel to see what is."""
