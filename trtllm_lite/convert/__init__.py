"""Converts a Hugging Face directory, a GGUF file or a hub id into a checkpoint (network.onnx, weights.safetensors)."""

from trtllm_lite.convert.checkpoint import Converted, convert_checkpoint
from trtllm_lite.convert.model_config import WeightlessModel, open_model_config

__all__ = ["Converted", "WeightlessModel", "convert_checkpoint", "open_model_config"]
