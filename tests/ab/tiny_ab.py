"""Sizes of the A/B tests."""

ARENA_BYTES = 1 << 16
"""A few weights of the tiny models."""
