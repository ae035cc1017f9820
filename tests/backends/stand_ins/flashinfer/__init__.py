"""A stand-in for FlashInfer 0.7.4; its functions are in `decode`, as they are there."""
