"""llm-decode-harness: how far is one decode from the memory wall, and why."""

__version__ = "0.1.0"
