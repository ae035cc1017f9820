"""`harness plan`: the floor of a decode step on a device, from shapes and figures alone. Nothing is run."""
