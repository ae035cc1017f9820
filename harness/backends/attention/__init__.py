"""Backends of the attention over a contiguous cache, one file each; `registry` imports them all."""
