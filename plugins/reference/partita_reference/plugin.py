"""Entry point of device REFERENCE; the evaluator is imported when a model is compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import partita
from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.contract.query import QueryResult
from partita.errors import OperandError
from partita.properties.deferred import deferred_properties

if TYPE_CHECKING:
    from partita.properties import DeviceProperties
    from partita_reference.properties import ReferenceProperties


class ReferencePlugin(DevicePlugin):
    """Every operator of ONNX, at the speed of a specification."""

    device_name = "REFERENCE"
    is_reference = True
    properties_type: ClassVar[type[ReferenceProperties]] = deferred_properties(
        "partita_reference.properties:ReferenceProperties"
    )

    def device_info(self, device_id: str) -> DeviceInfo:
        """Names the version of the evaluator."""
        from importlib.metadata import version

        return DeviceInfo(
            self.device_name,
            "ONNX reference evaluator",
            kind="reference",
            driver=f"onnx {version('onnx')}",
        )

    def query_model(self, model: partita.Model, properties: DeviceProperties) -> QueryResult:
        """Takes every operator that the evaluator implements."""
        from partita_reference.evaluator import missing

        return QueryResult.of(self.device_name, {op.name: missing(op.node) for op in model.ops})

    def compile_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.DeviceModel:
        """Prepares the evaluator.

        Raises:
            UnsupportedOpError: It has no such operation.
            OperandError: An operation does not fit what it reads, whatever the inputs are.
        """
        from partita.model.inference.shape_inference import impossible_operation
        from partita_reference.evaluator import ReferenceModel

        self.query_model(model, properties).require_all(model)
        found = impossible_operation(model.ir)
        if found is not None:
            raise OperandError(
                f"Operation '{found.name}' ({found.op_type}) cannot be computed: {found.reason}."
            )
        return ReferenceModel(model, properties, self.device_name)


@partita.hookimpl
def device_plugins() -> Iterable[DevicePlugin]:
    """Registers REFERENCE."""
    return [ReferencePlugin()]
