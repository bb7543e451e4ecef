"""The lab's virtual machines: their kernels, how they are supervised, and how tests and results are passed."""
