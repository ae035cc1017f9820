"""Backends of the gated delta rule, one file each; `registry` imports them all."""
