"""Decoder language models as standard ONNX networks (opset 24), put together from blocks.

A family of ``convert/families`` composes a :class:`~trtllm_lite.network.decoder.Decoder` of an embedding
(:mod:`~trtllm_lite.network.ends`), layers (:mod:`~trtllm_lite.network.layers`) of :mod:`~trtllm_lite.network.attention`
and :mod:`~trtllm_lite.network.mlp`, :mod:`~trtllm_lite.network.norms` and a head. Each block holds its weights as
expressions over the source's tensors (:mod:`~trtllm_lite.network.weight_expression`); calling it appends its nodes. A
new kind of block is a new class of this form. :mod:`~trtllm_lite.network.verifier` checks a network on disk against the
contract that the builder relies on.
"""
