"""Stands in for torchvision, whose build for a torch without CUDA no package registry has.

transformers' image processor imports it, vLLM's Qwen3.5 imports that, and a text model calls none of it.
"""

__version__ = "0.28.0"
