"""Stores weights in fewer bits: the formats that exist, and schemes that apply them to a network.

A quantized network is standard ONNX: a DequantizeLinear in front of each product, so that onnxruntime can run it.
"""
