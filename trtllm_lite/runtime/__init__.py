"""Runs engines: a thin facade over the C++ extension. Imports nothing that convert or build need."""

from trtllm_lite.runtime.api.model_runner import ModelRunner

ModelRunnerCpp = ModelRunner  # TensorRT-LLM has two classes

__all__ = ["ModelRunner", "ModelRunnerCpp"]
