"""What a trace says: busy and idle time, classes of kernels, floors, cause. Pure."""
