"""The tensors that an A/B's problems are posed on, one module an operation; they need torch."""
