"""Reader of OpenVINO IR (``.xml`` and ``.bin``).

An IR is translated, layer by layer, to ONNX operators; from there on it is a model like any other.

| module | what it holds |
| --- | --- |
| ``document`` | the XML file as layers, ports and edges |
| ``weights`` | element types, and constants inside the ``.bin`` file |
| ``graph`` | the walk over the layers that makes the graph |
| ``translator`` | what a translator sees of one layer, and the table of translators |
| ``translators`` | translators, by what the layers do |

Names and meanings of layers: https://docs.openvino.ai/2026/documentation/openvino-ir-format.html
"""

from partita.frontends.openvino_ir.graph import read_ir

__all__ = ["read_ir"]
