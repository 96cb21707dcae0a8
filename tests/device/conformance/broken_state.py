"""Devices with one fault each in how they update state in place, and one without."""

from __future__ import annotations

import numpy as np
from good_device import Good, GoodCompiled, GoodRunner

import partita
from partita.lowering import lower
from partita.lowering.kernel_table import in_place_outputs

_PAIRS = {"TensorScatter": {0: 0}, "GroupQueryAttention": {1: 3, 2: 4}}


class StateRunner(GoodRunner):
    def run(self, inputs, outputs=None):
        arrays = self.evaluate([tensor.numpy() for tensor in inputs])
        plugin, pairs = self.compiled.plugin, self.compiled.in_place_outputs()
        results = []
        for index, array in enumerate(arrays):
            given = None if outputs is None else outputs[index]
            source = inputs[pairs[index]] if index in pairs else None
            if source is not None and given is source:
                results.append(plugin.update(given, array))
            else:
                if source is not None:
                    plugin.apart(source, array)
                results.append(partita.HostTensor(array))
        return results

    def bind(self, inputs, outputs, scratch=None):
        return StateCall(self, inputs, outputs)


class StateCall(partita.BoundCall):
    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, inputs, outputs

    def __call__(self):
        self.runner.compiled.plugin.called(self)


class StateModel(GoodCompiled):
    def in_place_outputs(self):
        return self.plugin.pairs(
            in_place_outputs(
                lower(self.model),
                self.inputs,
                self.outputs,
                lambda node: _PAIRS.get(node.op_type, {}),
            )
        )

    def allocate(self, port, shape):
        return self.plugin.allocated(super().allocate(port, shape))


class GoodState(Good):
    """Right, and updates state in place."""

    device_name = "STATE"
    compiled_type = StateModel
    runner_type = StateRunner

    def pairs(self, pairs):
        return pairs

    def allocated(self, tensor):
        return tensor

    def update(self, tensor, array):
        """Writes the present over the past."""
        tensor.numpy()[...] = array
        return tensor

    def apart(self, source, array):
        """Where the present lies elsewhere, leaves the past."""

    def called(self, call):
        """Makes a bound call."""
        results = call.runner.run(call.inputs, call.outputs)
        for result, output in zip(results, call.outputs, strict=True):
            if result is not output:
                output.copy_from(result)


class BrokenState(GoodState):
    device_name = "BROKEN"
    suites = ("state/*",)


class WritesBeside(BrokenState):
    def update(self, tensor, array):
        flat = tensor.numpy()
        if flat.base is not None and flat.base.size > flat.size:
            flat.base.reshape(-1).view(flat.dtype)[-1] = 0
        return super().update(tensor, array)


class DeclinesItsMemory(BrokenState):
    def update(self, tensor, array):
        return partita.HostTensor(array)


class ForgetsToUpdate(BrokenState):
    def update(self, tensor, array):
        return tensor


class AddsToWhatIsThere(BrokenState):
    def update(self, tensor, array):
        tensor.numpy()[...] += array
        return tensor


class WritesThePast(BrokenState):
    def apart(self, source, array):
        source.numpy()[...] = array


class AllocatesGarbage(BrokenState):
    def allocated(self, tensor):
        tensor.numpy()[...] = 3
        return tensor


class Uncleared(partita.HostTensor):
    def clear(self):
        pass


class ClearsNothing(BrokenState):
    def allocated(self, tensor):
        return Uncleared(tensor.numpy())


class AllocatesAnotherShape(BrokenState):
    def allocated(self, tensor):
        return partita.HostTensor(np.zeros((2, *tensor.shape), tensor.dtype))


class PairsUnlikePorts(BrokenState):
    def pairs(self, pairs):
        return {0: 0, **pairs} if pairs and 0 not in pairs else pairs


class TwoOutputsOverOneInput(BrokenState):
    def pairs(self, pairs):
        return dict.fromkeys(pairs, min(pairs.values())) if len(pairs) > 1 else pairs


class BindsToCopies(BrokenState):
    def called(self, call):
        state = {id(tensor): partita.HostTensor(tensor.numpy().copy()) for tensor in call.inputs}
        call.inputs = [state[id(tensor)] for tensor in call.inputs]
        call.outputs = [state.get(id(tensor), tensor) for tensor in call.outputs]
        super().called(call)
