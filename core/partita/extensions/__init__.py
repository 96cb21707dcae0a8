"""Custom operators that an application writes in Python: ``Core.add_extension``."""

from __future__ import annotations

from partita.extensions.extension import Extension as Extension
from partita.extensions.extension import advice as advice
from partita.extensions.extension import extension_of as extension_of
from partita.extensions.extension import noted as noted
from partita.extensions.function import CustomOperator as CustomOperator
from partita.extensions.op_class import DiscreteTypeInfo as DiscreteTypeInfo
from partita.extensions.op_class import OpExtension as OpExtension
from partita.extensions.registered import Extensions as Extensions

__all__ = [
    "CustomOperator",
    "DiscreteTypeInfo",
    "Extension",
    "Extensions",
    "OpExtension",
    "advice",
    "extension_of",
    "noted",
]
