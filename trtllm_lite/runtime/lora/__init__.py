"""Manages the adapters (LoRA) of requests: where they are read from, and which are in memory."""
