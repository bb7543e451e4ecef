"""The lab's virtual machines: the kernels they boot, how they are watched, and how tests get into them and back."""
