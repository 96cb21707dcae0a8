"""Sampling: images are read at places that another tensor names, between pixels too."""
