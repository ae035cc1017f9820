"""vLLM in this process, step by step. Nothing here imports vLLM or torch before the run's variables are set."""
