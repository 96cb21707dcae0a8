"""How the kernels of ``outer_numerics`` are put in the place of right ones, bodies included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broken_form import Broken
from good_device import GoodCompiled
from onnx.reference import ReferenceEvaluator


@dataclass
class Call:
    """One call of a kernel: what it is given, and the right kernel to fall back on."""

    node: Any
    inputs: list[Any]
    options: dict[str, Any]
    inside: bool
    original: Any

    @property
    def opset(self):
        """The version of ONNX's own operators that the model is written in."""
        return self.node.run_params["opsets"].get("", 1)

    @property
    def at(self):
        """Attributes by name, defaults included."""
        return {name: getattr(self.node, name) for name in self.node.attributes_names_}

    @property
    def given(self):
        """Names of the attributes that the model itself writes."""
        return {attribute.name for attribute in self.node.onnx_node.attribute}

    def right(self, *inputs, **changes):
        """Outputs of the right kernel, of other inputs or with other attributes."""
        kept = {name: getattr(self.node, name) for name in changes}
        for name, value in changes.items():
            setattr(self.node, name, value)
        try:
            return list(self.original(*(inputs or self.inputs), **self.options))
        finally:
            for name, value in kept.items():
                setattr(self.node, name, value)


class Kernel(Broken):
    """A device of which one operator's kernel is the author's own."""

    op: Any = ""

    class compiled_type(GoodCompiled):
        def __init__(self, plugin, model, properties):
            super().__init__(plugin, model, properties)
            plugin.install(self.evaluator, inside=False)

    def install(self, evaluator, inside):
        """Puts the kernel at each node of the operator, those of bodies too."""
        names = (self.op,) if isinstance(self.op, str) else self.op
        for node in evaluator.rt_nodes_:
            if node.onnx_node.op_type in names and not node.onnx_node.domain:
                self.replace(node, inside)
            for value in list(vars(node).values()):
                if isinstance(value, ReferenceEvaluator):
                    self.install(value, inside=True)

    def replace(self, node, inside):
        """Puts the kernel at one node."""
        original = node.run

        def run(*inputs, **options):
            return tuple(self.kernel(Call(node, list(inputs), options, inside, original)))

        node.run = run

    def kernel(self, call):
        """Outputs of one call."""
        raise NotImplementedError
