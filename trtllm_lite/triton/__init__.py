"""Runs engines in Triton Inference Server, with the models and names that users of its TensorRT-LLM backend know.

``repository.py`` writes a model repository, whose ``model.py`` files import ``preprocessing.py``, ``tensorrt_llm.py``
and ``postprocessing.py`` of this folder. These three run inside Triton's Python backend only: the module
``triton_python_backend_utils``, which they import, exists nowhere else.
"""
