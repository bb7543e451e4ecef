"""The seam between the masquerade controller and the kernel: sets and rules, whichever tool the kernel has for them."""
