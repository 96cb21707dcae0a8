"""Further checks of what is lent, left and made again: much of it at once, and of any origin."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

import partita
from partita.errors import PartitaError
from partita.model.variables import METADATA_KEY, Variable, to_metadata
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import (
    ConformanceError,
    NotApplicableError,
    require,
)
from partita_conformance.suites.contract.suite_faults import NEVER
from partita_conformance.suites.feeding import host_tensors
from partita_conformance.suites.resources.suite_sharing import lending_models


@check("given", values=True)
def outputs_of_any_origin_are_written(bench: Bench) -> None:
    """Weights, constants, inputs and views that are outputs are written to what each run is given.

    Whichever of them have a tensor given, in the first run and in later ones.
    """
    for sample in lending_models(bench):
        compiled = bench.compile(sample.proto)
        runner, request = compiled.device_model.create_runner(), compiled.create_infer_request()
        masks = [*itertools.product((True, False), repeat=len(compiled.outputs))]
        for turn, mask in enumerate((masks[0], *masks, masks[0])):
            feeds = sample.feeds(turn)
            due = bench.expected(sample.proto, feeds)
            given = [
                partita.HostTensor(np.full_like(array, 55)) if wanted else None
                for array, wanted in zip(due, mask, strict=True)
            ]
            results = runner.run(host_tensors(compiled, feeds), given)
            what = f"{sample.name}, outputs given in run {turn + 1}: {list(mask)}"
            compare([tensor.numpy() for tensor in results], due, what)
            places = [np.full_like(array, 55) for array in due]
            for index, place in enumerate(places):
                request.set_output_tensor(index, partita.HostTensor(place))
            request.infer(feeds)
            compare(places, due, f"{what}, of a request")
        runner.close()


@check("boundary")
def host_memory_that_is_held_is_lent_once(bench: Bench) -> None:
    """However much host memory is held, small blocks and large ones, no two are the same."""
    sizes = [*(1 << 10,) * 300, *(1 << 16,) * 64, *(1 << 20,) * 6, *(100,) * 100]
    held = []
    for number, size in enumerate(sizes):
        block = bench.core.device_api.host_memory(bench.device, size)
        if block is not None:
            block[...] = number % 251
            held.append((number % 251, block))
    if not held:
        raise NotApplicableError("the device offers no host memory")
    for place, (number, block) in enumerate(held):
        same = bool((block == number).all())
        require(same, f"Block {place + 1} of {len(held)} that are held lies where another does.")


@check("boundary")
def host_memory_is_held_by_its_views(bench: Bench) -> None:
    """A block of host memory is lent again when nobody has a part of it any more, not before."""
    held = []
    for number in range(24):
        block = bench.core.device_api.host_memory(bench.device, 4096)
        if block is None:
            raise NotApplicableError("the device offers no host memory")
        block[...] = number
        held.append(block[64:].view(np.int32)[::2])
        del block
        gc.collect(0)
    for number, part in enumerate(held):
        same = bool((part == number * 0x01010101).all())
        require(same, f"A part of block {number + 1} is held; the block was lent again.")


@check("plugin")
def transfers_that_are_held_stay(bench: Bench) -> None:
    """Hundreds of tensors that lie on the device at once are each what they were."""
    arrays = [np.full((1 + n % 7, 3), n, np.float32) for n in range(300)]
    tensors = [bench.plugin.transfer_to(partita.HostTensor(a), bench.device_id) for a in arrays]
    compare([tensor.numpy() for tensor in tensors], arrays, "tensors held on the device", 0, 0)


_MODELS = 40
"""More than a table of 32 places holds."""


@check("sharing", values=True)
def many_models_run_in_turns(bench: Bench) -> None:
    """Dozens of models that differ in their weights and sizes, there together, run as they are."""
    texts = ("Add(x, w)", "Mul(x, w)", "MatMul(x, w)", "Neg(x)", "Abs(x)")

    def made(step: str, number: int) -> onnx.ModelProto:
        rows = 2 + number % 3
        kind = f"float[{rows},{rows}]"
        weight = {"w": np.full((rows, rows), 0.5 + number, np.float32)} if "w" in step else None
        return parse(f"m{number} ({kind} x) => ({kind} y) {{ y = {step} }}", weight)

    step, _ = next(bench.taken((step, made(step, 0)) for step in texts))
    protos = [made(step, number) for number in range(_MODELS)]
    models = [bench.compile(proto) for proto in protos]
    requests = [compiled.create_infer_request() for compiled in models]
    order = [*range(_MODELS), *reversed(range(_MODELS))]
    for turn, number in enumerate(order):
        feeds = Sample("", protos[number]).feeds(turn)
        due = bench.expected(protos[number], feeds)
        what = f"{step}, model {number + 1} of {_MODELS} that are there, turn {turn + 1}"
        compare(requests[number].infer(feeds).to_tuple(), due, what)


@check("faults", values=True)
def bound_calls_that_fail_are_typed(bench: Bench) -> None:
    """A bound call that cannot be computed raises as a run does, and computes again afterwards."""
    tried = 0
    x = np.arange(6, dtype=np.float32)
    models = (((what, bad, good), parse(text)) for what, (text, bad, good) in NEVER.items())
    for (what, bad, good), proto in bench.taken(models):
        compiled = bench.compile(proto)
        device_model, runner = compiled.device_model, compiled.device_model.create_runner()
        feeds = {"x": x.copy(), **{name: array.copy() for name, array in good.items()}}
        due = bench.expected(proto, feeds)
        inputs = host_tensors(compiled, feeds)
        runner.run(inputs)
        outputs = [partita.HostTensor(np.zeros_like(array)) for array in due]
        call = runner.bind(inputs, outputs, np.zeros(device_model.scratch_bytes, np.uint8))
        if call is None:
            continue
        tried += 1
        for turn in range(3):
            if all(array.shape == feeds[name].shape for name, array in bad.items()):
                for name, array in bad.items():
                    feeds[name][...] = array
                _require_typed(call, what)
                for name, array in good.items():
                    feeds[name][...] = array
            runner.run(inputs)
            with contextlib.suppress(PartitaError):  # it may have ended with the failure
                call()
                have = [tensor.numpy() for tensor in outputs]
                compare(have, due, f"{what}, a bound call after it, turn {turn + 1}")
        runner.close()
    if not tried:
        raise NotApplicableError("the device binds no call")


def _require_typed(call: Callable[[], None], what: str) -> None:
    try:
        call()
    except PartitaError:
        pass
    except Exception as error:
        raise ConformanceError(
            f"{what}: a bound call raises {type(error).__name__} ({error}), no InferError."
        ) from error


_UPDATES = {
    **{f"{op} of it": f"p = {op}(past, x)" for op in ("Add", "Sub", "Mul", "Max", "Min", "Div")},
    "Add to it": "p = Add(x, past)",
    "Neg": "p = Neg(past)",
    "Identity": "p = Identity(past)",
    "two steps": "a = Mul(past, x) p = Add(a, x)",
    "scattered rows": "p = ScatterND(past, at, x)",
    "scattered sums": 'p = ScatterND <reduction = "add"> (past, at, x)',
    "scattered elements": "p = ScatterElements <axis = 0> (past, places, x)",
    "scattered elements' sums": 'p = ScatterElements <axis = 0, reduction = "add">'
    " (past, places, x)",
    "a choice": "p = Where(mask, past, x)",
    "rows put into it": "p = TensorScatter <axis = 1> (past, x, first)",
}
"""What becomes of an input that a device may want to write over; not all can be made twice."""


def _updates(bench: Bench) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Models of one such input that the device takes, declared as a variable and not."""
    constants: dict[str, Array] = {
        "at": np.array([[1], [0]], np.int64),
        "first": np.zeros(2, np.int64),
        "places": np.array([[1, 0, 1], [0, 1, 0]], np.int64),
        "mask": np.array([[True, False, True], [False, True, False]]),
    }
    for name, steps in _UPDATES.items():
        text = "g (float[2,3] past, float[2,3] x) => (float[2,3] p)"
        read = {n: a for n, a in constants.items() if n in steps}
        proto = parse(f"{text} {{ {steps} }}", read)
        proto.ClearField("opset_import")
        proto.ir_version = 10
        proto.opset_import.append(helper.make_opsetid("", 24 if "Tensor" in steps else 18))
        if bench.refusals(proto):
            continue
        yield name, proto
        kept = onnx.ModelProto()
        kept.CopyFrom(proto)
        entry = kept.metadata_props.add()
        entry.key, entry.value = METADATA_KEY, to_metadata([Variable("v", "past", "p")])
        yield f"{name}, a variable", kept


@check("state", values=True)
def what_is_written_over_can_be_written_again(bench: Bench) -> None:
    """Whatever a device updates in place, a run that is made twice gives what it gives once."""
    tried = 0
    for name, proto in _updates(bench):
        device_model = bench.compile(proto).device_model
        if device_model.in_place_outputs().get(0) != 0:
            continue
        tried += 1
        feeds = Sample(name, proto).feeds(3)
        due = bench.expected(proto, {n: a.copy() for n, a in feeds.items()})
        runner = device_model.create_runner()
        tensor = device_model.allocate(device_model.inputs[0], (2, 3))
        tensor.copy_from(partita.HostTensor(feeds["past"]))
        for turn in ("", ", made again"):
            runner.run([tensor, partita.HostTensor(feeds["x"])], [tensor])
            compare([tensor.numpy()], due, f"{name} of what is written over{turn}")
        runner.close()
    if not tried:
        raise NotApplicableError("the device updates none of these in place")


@check("members")
def allocated_tensors_take_copies(bench: Bench) -> None:
    """What an allocated tensor is given it copies: neither of the two sees what the other becomes.

    They are as many as one asks for, and empty ones among them.
    """
    sample = bench.sample("dynamic")
    device_model = bench.compile(sample.proto).device_model
    feeds = sample.feeds(52, N=4)
    port = device_model.inputs[0]
    source = feeds[port.name].copy()
    first, second = (device_model.allocate(port, source.shape) for _ in range(2))
    first.copy_from(partita.HostTensor(source))
    second.copy_from(first)
    held = source.copy()
    source[...] = 77
    compare([first.numpy(), second.numpy()], [held] * 2, "tensors after their source has changed")
    first.clear()
    compare([second.numpy()], [held], "a tensor after the one that it was copied from was cleared")
    require(bool((source == 77).all()), "clear() clears what copy_from() was given.")
    second.copy_from(partita.HostTensor(source))
    first.copy_from(second)
    device_model.create_runner().run([second, *host_tensors(device_model, feeds)[1:]])
    compare([first.numpy(), second.numpy(), source], [np.full_like(held, 77)] * 3, "after a run")
    many = [device_model.allocate(port, (n % 4, *source.shape[1:])) for n in range(80)]
    for number, tensor in enumerate(many):
        tensor.copy_from(partita.HostTensor(np.full(tensor.shape, number, port.dtype)))
    due = [np.full(tensor.shape, number, port.dtype) for number, tensor in enumerate(many)]
    compare([tensor.numpy() for tensor in many], due, "80 allocated tensors")


@check("request", values=True)
def results_that_are_left_stay(bench: Bench) -> None:
    """Results that a runner has given up are written no more, whatever it runs next.

    Nor are they by others of its model, when it has been closed.
    """
    tried = 0
    for kind in ("dynamic", "outputs", "large"):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto)
        runner = compiled.device_model.create_runner()
        left: list[tuple[Sequence[Array], Sequence[Array]]] = []
        for turn, rows in enumerate((3, 3, 5, 2, 3, 5, 0, 3)):
            feeds: dict[str, Any] = sample.feeds(turn, **({"N": rows} if sample.sizes else {}))
            due = bench.expected(sample.proto, feeds)
            given = [partita.HostTensor(np.zeros_like(a)) for a in due] if turn == 4 else None
            arrays = [t.numpy() for t in runner.run(host_tensors(compiled, feeds), given)]
            compare(arrays, due, f"{sample.name}, run {turn + 1}")
            for before, expected in left:
                what = f"{sample.name}, results that were left, after run {turn + 1}"
                compare(before, expected, what)
            if runner.leave_results():
                tried += 1
                left.append((arrays, due))
        runner.close()
        after = compiled.device_model.create_runner()
        for turn, rows in enumerate((3, 5, 2, 0)):
            feeds = sample.feeds(turn + 9, **({"N": rows} if sample.sizes else {}))
            after.run(host_tensors(compiled, feeds), None)
            for before, expected in left:
                compare(before, expected, f"{sample.name}, results of a runner that was closed")
        after.close()
    if not tried:
        raise NotApplicableError("the device leaves no results")
