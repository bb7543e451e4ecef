"""The controllers: each reconciles one part of the node's kernel with the plans."""
