"""What numba functions lack: calls through addresses, arrays over memory, atomic operations."""
