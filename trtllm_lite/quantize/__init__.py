"""Weights in fewer bits: the formats that there are, and schemes that put them into a network.

A quantized network is standard ONNX: a DequantizeLinear in front of each product, so that onnxruntime runs it, too.
"""
