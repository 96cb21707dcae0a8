"""Properties of OpenVINO's CPU plugin by name."""

from __future__ import annotations

import enum

from partita.properties.names import Property

denormals_optimization = Property("CPU_DENORMALS_OPTIMIZATION")
sparse_weights_decompression_rate = Property("CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE")
tbb_partitioner = Property("TBB_PARTITIONER")


class TbbPartitioner(enum.StrEnum):
    """How loops are cut among threads."""

    NONE = "NONE"
    STATIC = "STATIC"
    AUTO = "AUTO"
