"""Runs engines: a thin facade over the C++ extension. It imports nothing that is only for converting or building."""

from trtllm_lite.runtime.api.model_runner import ModelRunner

ModelRunnerCpp = ModelRunner  # in TensorRT-LLM these are two classes

__all__ = ["ModelRunner", "ModelRunnerCpp"]
