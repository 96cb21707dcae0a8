"""Objects that cannot be copied to another process, and raise an error that says so."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class ProcessBound:
    """What holds a device's memory and threads: there is no copy of it, in no other process.

    Pickling it (which processes of ``multiprocessing`` do with their arguments), ``copy.copy`` and
    ``copy.deepcopy`` raise :class:`TypeError`, as Python's own objects of that kind do.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuses a copy.

        Raises:
            TypeError: Always; says what to do instead.
        """
        raise TypeError(
            f"{type(self).__name__} belongs to the process that made it, and cannot be pickled or "
            "copied. Let each process compile the model (with CACHE_DIR set, all but the first "
            "read the result), or give it the bytes of export_model() for Core.import_model()."
        )
