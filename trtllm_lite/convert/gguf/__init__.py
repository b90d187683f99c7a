"""Reads models in llama.cpp's GGUF format."""
