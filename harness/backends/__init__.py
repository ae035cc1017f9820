"""Implementations of one operation each, one file each, found by name: see `registry` and `base`."""
