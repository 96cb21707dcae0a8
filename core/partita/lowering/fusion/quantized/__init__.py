"""Fusion of quantized models: operations between DequantizeLinear and QuantizeLinear in integers.

A quantized model in QDQ form computes in float32 between ``DequantizeLinear`` and
``QuantizeLinear``. These passes find operations that integers compute as well. A level is an
element of a quantized tensor: ``real = (level - zero_point) * scale``; `levels` has that as data.
"""
