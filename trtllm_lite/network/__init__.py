"""The shared ONNX building blocks of decoder language models.

A family of ``convert/families`` describes a model as a :class:`~trtllm_lite.network.spec.DecoderSpec`;
:func:`~trtllm_lite.network.decoder.build_decoder` turns that into a standard ONNX network (opset 24), and
:mod:`~trtllm_lite.network.verifier` checks a network on disk against the contract that the builder relies on.
"""
