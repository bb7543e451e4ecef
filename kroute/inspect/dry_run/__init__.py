"""The controllers on kernel classes that read the kernel and only write down what they would change."""
