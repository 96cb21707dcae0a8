"""Turns Python into machine code, keeps that on disk, and loads it without a compiler."""
