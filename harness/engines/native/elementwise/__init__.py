"""What a step does between products and attention: the protocol in `base`, an implementation a file."""
