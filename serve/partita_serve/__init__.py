"""Serving: models behind the Open Inference Protocol, over REST and gRPC."""
