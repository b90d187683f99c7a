"""Adapters (LoRA) of requests: where they come from, and which are in memory."""
