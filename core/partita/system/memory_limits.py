"""The limits on this process's memory, of which libraries fail in ways of their own."""

from __future__ import annotations


def memory_limits() -> dict[str, int]:
    """Bytes that this process may have, by what is limited; empty where nothing is."""
    try:
        import resource
    except ImportError:  # Windows
        return {}
    kinds = {"address space": resource.RLIMIT_AS, "data": resource.RLIMIT_DATA}
    found = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    return {name: most for name, most in found.items() if most != resource.RLIM_INFINITY}


def more_memory() -> str:
    """The advice where a limit may be behind a failure; empty if there is none."""
    limits = " and ".join(f"{most >> 20} MiB of {kind}" for kind, most in memory_limits().items())
    return limits and f"this process may have {limits}: let it have more (ulimit -v, ulimit -d)"
