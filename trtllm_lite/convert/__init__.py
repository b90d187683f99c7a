"""Converts a Hugging Face directory, a GGUF file or a hub id into a checkpoint (network.onnx, weights.safetensors)."""

from trtllm_lite.convert.checkpoint import convert_checkpoint

__all__ = ["convert_checkpoint"]
