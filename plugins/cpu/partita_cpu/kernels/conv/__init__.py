"""Convolutions and pools of images with channels first."""
