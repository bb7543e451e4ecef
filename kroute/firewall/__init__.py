"""Between the masquerade controller and the kernel: the sets and the rules, whatever the kernel's tool for them is."""
