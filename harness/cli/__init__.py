"""The `harness` command: signatures and rendering. What it does lies in the use cases."""
