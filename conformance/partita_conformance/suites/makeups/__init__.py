"""Drawn models, each alone and beside others like it, and what must hold of every one."""
