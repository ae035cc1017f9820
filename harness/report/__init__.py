"""What can be told of runs that are over."""
