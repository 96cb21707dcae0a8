"""Names of properties of device HETERO, as OpenVINO's ``properties.hetero`` has them."""

from __future__ import annotations

from partita.properties.names import Property

number_of_submodels = Property("HETERO_NUMBER_OF_SUBMODELS")
dump_graph_dot = Property("HETERO_DUMP_GRAPH_DOT")
executor = Property("HETERO_EXECUTOR")
strict = Property("STRICT")
