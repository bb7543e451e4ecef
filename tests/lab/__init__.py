"""A lab with a real kernel: network namespaces for nodes, pods and clients, in a virtual machine if need be."""
