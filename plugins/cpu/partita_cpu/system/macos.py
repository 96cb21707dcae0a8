"""macOS: threads cannot be kept on a processor, and its object files are not of the ELF format."""

from __future__ import annotations

from partita_cpu.system.portable import pin

__all__ = ["pin", "pins_threads", "walks_programs"]

walks_programs = False
pins_threads = False
