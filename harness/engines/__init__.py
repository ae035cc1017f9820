"""Engines: what turns a prompt into tokens, one kind a module or folder, found by name in `registry`."""
