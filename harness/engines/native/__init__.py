"""The harness's own decoder for Llama, Qwen2 and Qwen3: small enough to read, fast enough to meet the wall."""
