"""A/B: the same work by several implementations, interleaved, checked, and told apart only where the data do."""
