"""Compiled models, infer requests and queues, as applications use them."""
