"""Backends of the matrix products with weights, one file each; `registry` imports them all."""
