"""The network namespaces of pods: found by their processes, and changed by sockets that are opened inside."""
