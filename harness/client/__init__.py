"""Requests to an OpenAI-compatible server, stamped as their bytes arrive."""
