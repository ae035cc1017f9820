"""Readers of profilers' files, one a format, all giving `harness.specs.trace.Trace`."""
