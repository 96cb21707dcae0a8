"""A device that offers all that tensors may cross by, and devices with one fault each in it."""

from __future__ import annotations

import numpy as np
from good_device import Good, GoodCompiled, GoodRunner

import partita
from partita.tensors.layout import MemoryLayout
from partita.tensors.layout_tensor import LaidOutTensor, stored_as


class OfferingCompiled(GoodCompiled):
    """Names the reverse order of axes for every float port."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.laid_out = {}

    def layouts(self):
        ports = (*self.inputs, *self.outputs)
        floats = [p for p in ports if p.dtype == np.float32 and p.shape is not None]
        return {port: (self.plugin.layout_of(port),) for port in floats}

    def with_layouts(self, layouts):
        other = type(self)(self.plugin, self.model, self.properties)
        other.laid_out = dict(layouts)
        return other


class OfferingRunner(GoodRunner):
    """Reads and writes tensors in layouts, and repeats runs."""

    def run(self, inputs, outputs=None):
        laid_out, plugin = self.compiled.laid_out, self.compiled.plugin
        ports = self.compiled.inputs
        plain = [
            partita.HostTensor(plugin.take(tensor, laid_out.get(port)))
            for port, tensor in zip(ports, inputs, strict=True)
        ]
        results = super().run(plain)
        made = []
        for port, result in zip(self.compiled.outputs, results, strict=True):
            made.append(plugin.give(result.numpy(), laid_out.get(port)))
        if outputs is None:
            return made
        for tensor, given in zip(made, outputs, strict=True):
            if given is not None:
                plugin.write(tensor, given)
        return [given or tensor for tensor, given in zip(made, outputs, strict=True)]

    def bind(self, inputs, outputs, scratch=None):
        return self.compiled.plugin.repeat(self, inputs, outputs)


class Call(partita.BoundCall):
    def __init__(self, call):
        self.call = call

    def __call__(self):
        self.call()


class RunAgain(partita.BoundCall):
    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, inputs, outputs

    def __call__(self):
        self.runner.run(self.inputs, self.outputs)

    def rebind(self, inputs):
        self.inputs = inputs
        return True


class Offering(Good):
    device_name = "OFFERING"
    compiled_type = OfferingCompiled
    runner_type = OfferingRunner

    def layout_of(self, port):
        return MemoryLayout(tuple(reversed(range(len(port.shape)))), np.dtype(np.float32))

    def take(self, tensor, layout):
        array = stored_as(tensor, layout)
        return array if layout is None else layout.plain(array, tensor.dtype)

    def give(self, array, layout):
        if layout is None:
            return partita.HostTensor(array)
        return LaidOutTensor(layout.stored(array), array.dtype, layout)

    def write(self, tensor, given):
        given.stored()[...] = tensor.stored()

    def repeat(self, runner, inputs, outputs):
        return RunAgain(runner, inputs, outputs)

    def host_memory(self, nbytes, device_id=""):
        return np.zeros(nbytes, np.uint8)


class Faulty(Offering):
    """The base of the broken ones."""

    device_name = "FAULTY"


class NamesPortsOfAnotherModel(Faulty):
    check = "names_layouts_that_fit"

    class Compiled(OfferingCompiled):
        def layouts(self):
            port = self.inputs[0]
            other = partita.Port(port.index, "nobody", port.dtype, port.shape)
            return {other: (self.plugin.layout_of(port),)}

    compiled_type = Compiled


class OrdersAxesThatAreNotThere(Faulty):
    check = "names_layouts_that_fit"

    def layout_of(self, port):
        return MemoryLayout((0, 1, 2, 3, 4, 5), np.dtype(np.float32))


class ReadsEveryLayoutAsPlain(Faulty):
    check = "computes_the_same_in_every_layout"

    def take(self, tensor, layout):
        return tensor.stored().reshape(tensor.shape)


class WritesPlainElementsIntoLayouts(Faulty):
    check = "computes_the_same_in_every_layout"

    def give(self, array, layout):
        if layout is None:
            return partita.HostTensor(array)
        shape = layout.shape_in_memory(array.shape)
        return LaidOutTensor(array.reshape(shape), array.dtype, layout)


class ForgetsTheLayoutOfOutputs(Faulty):
    check = "computes_the_same_in_every_layout"

    def give(self, array, layout):
        return partita.HostTensor(array)


class RepeatsTheFirstInputs(Faulty):
    check = "bound_calls_compute_what_inputs_hold"

    def repeat(self, runner, inputs, outputs):
        copies = [partita.HostTensor(tensor.numpy().copy()) for tensor in inputs]
        return Call(lambda: runner.run(copies, outputs))


class RepeatsIntoMemoryOfItsOwn(Faulty):
    check = "bound_calls_compute_what_inputs_hold"

    def repeat(self, runner, inputs, outputs):
        return Call(lambda: runner.run(inputs))


class OffersTooLittleMemory(Faulty):
    check = "offers_host_memory_that_lasts"

    def host_memory(self, nbytes, device_id=""):
        return np.zeros(nbytes // 2, np.uint8)


class OffersTheSameMemoryTwice(Faulty):
    check = "offers_host_memory_that_lasts"

    block = np.zeros(1 << 21, np.uint8)

    def host_memory(self, nbytes, device_id=""):
        return self.block[:nbytes]


class OffersMemoryThatCannotBeWritten(Faulty):
    check = "offers_host_memory_that_lasts"

    def host_memory(self, nbytes, device_id=""):
        block = np.zeros(nbytes, np.uint8)
        block.flags.writeable = False
        return block


FAULTS = {cls.__name__: cls for cls in Faulty.__subclasses__()}
