"""Suite ``boundary``: what devices may offer so that tensors cross and runs start at less cost."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

import partita
from partita.contract.bound_call import BoundCall
from partita.errors import BoundCallEndedError, InferError
from partita.tensors.layout import MemoryLayout
from partita.tensors.layout_tensor import LaidOutTensor
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import (
    Array,
    Sample,
    in_halves,
    narrow_samples,
    networks,
    parse,
    samples,
)
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require

Layouts = Mapping[partita.Port, Sequence[MemoryLayout]]


def _offers(bench: Bench) -> Iterator[tuple[Sample, partita.DeviceModel, Layouts]]:
    """Models whose ports could have other layouts.

    Raises:
        NotApplicableError: There are none.
    """
    found = False
    for sample in (*networks(), *_small(), *_trivial()):
        if bench.refusals(sample.proto):
            continue
        compiled = bench.compile(sample.proto).device_model
        layouts = compiled.layouts()
        if layouts:
            found = True
            yield sample, compiled, layouts
    if not found:
        raise NotApplicableError("the device names no layouts")


def _small() -> tuple[Sample, ...]:
    """Models of one input or two, those of images and of float16 among them."""
    kinds = "plain", "pair"
    return tuple(one for of in (samples, narrow_samples) for kind in kinds for one in of(kind))


def _trivial() -> tuple[Sample, ...]:
    """Models some of whose ports lie alike in every order of their axes, and are told apart."""
    narrow = "narrow (float[2,1,5,3] x) => (float[2,1,5,3] y) { y = Relu(x) }"
    flat = "flat (float[2,3,1,1] x) => (float[2,3,1,1] y) { y = Relu(x) }"
    one = "one (float[1,1,1,1] x) => (float[1,1,1,1] y) { y = Relu(x) }"
    wide = [Sample(text.split()[0], parse(text)) for text in (narrow, flat, one)]
    return (*wide, *map(in_halves, wide))


@check("boundary")
def names_layouts_that_fit(bench: Bench) -> None:
    """layouts() names ports of the compiled model, each with different orders of its axes."""
    for sample, compiled, layouts in _offers(bench):
        ports = {*compiled.inputs, *compiled.outputs}
        for port, offered in layouts.items():
            what = f"layouts() of '{sample.name}'"
            require(port in ports, f"{what} names {port!r}, which is not a port of it.")
            require(len(set(offered)) == len(offered), f"{what} repeats one for '{port.name}'.")
            for layout in offered:
                require(
                    isinstance(layout, MemoryLayout), f"{what} holds a {type(layout).__name__}."
                )
                rank = -1 if port.shape is None else len(port.shape)
                require(
                    sorted(layout.axes) == list(range(rank)),
                    f"{what}: {layout.name} orders {len(layout.axes)} axes; '{port.name}' is "
                    f"{port.describe()}.",
                )


@check("boundary")
def computes_the_same_in_every_layout(bench: Bench) -> None:
    """Ports in layouts, alone and together, change no result; every other port stays plain."""
    for sample, compiled, layouts in _offers(bench):
        feeds = sample.feeds(70)
        plain = _run(bench, compiled, {}, feeds)
        choices = [{port: layout} for port, offered in layouts.items() for layout in offered]
        choices.append({port: offered[0] for port, offered in layouts.items() if offered})
        for chosen in choices:
            names = ", ".join(f"'{port.name}' {layout.name}" for port, layout in chosen.items())
            narrow = min(layout.dtype.itemsize for layout in chosen.values()) < 4
            compare(
                _run(bench, compiled.with_layouts(chosen), chosen, feeds),
                plain,
                f"{sample.name} with {names}",
                rtol=2e-2 if narrow else None,
                atol=2e-2 if narrow else None,
            )
        compare(_run(bench, compiled, {}, feeds), plain, f"{sample.name}, plain once more")


def _run(
    bench: Bench,
    compiled: partita.DeviceModel,
    chosen: Mapping[partita.Port, MemoryLayout],
    feeds: Mapping[str, Array],
) -> list[Array]:
    """Two runs of a runner, the second with tensors for its outputs; the second's results."""
    runner = compiled.create_runner()
    inputs = [_tensor(bench, feeds[port.name], chosen.get(port)) for port in compiled.inputs]
    first = runner.run(inputs)
    for port, tensor in zip(compiled.outputs, first, strict=True):
        due = chosen.get(port)
        require(
            tensor.layout == due,
            f"'{port.name}' comes {_called(tensor.layout)}; {_called(due)} was chosen.",
        )
    kept = [tensor.numpy().copy() for tensor in first]
    targets = [
        _host(np.zeros_like(array), chosen.get(port))
        for port, array in zip(compiled.outputs, kept, strict=True)
    ]
    second = runner.run(inputs, targets)
    compare([tensor.numpy() for tensor in second], kept, "a second run, into given tensors")
    return kept


def _tensor(bench: Bench, array: Array, layout: MemoryLayout | None) -> partita.Tensor:
    tensor = _host(array, layout)
    if layout is None or bench.core.device_api.can_share(bench.device, "host"):
        return tensor
    moved = bench.core.device_api.transfer_to(bench.device, tensor)
    require(
        moved.layout == layout,
        f"transfer_to makes a tensor {_called(layout)} one {_called(moved.layout)}.",
    )
    compare([moved.numpy()], [tensor.numpy()], f"transfer_to of a tensor {_called(layout)}")
    return moved


def _host(array: Array, layout: MemoryLayout | None) -> partita.Tensor:
    if layout is None:
        return partita.HostTensor(array)
    return LaidOutTensor(layout.stored(array), array.dtype, layout)


def _called(layout: MemoryLayout | None) -> str:
    return "plain" if layout is None else f"in layout {layout.name}"


@check("boundary")
def a_layout_that_was_not_chosen_does_no_harm(bench: Bench) -> None:
    """A tensor in a layout that its port was not given is an InferError, or is read rightly."""
    for sample, compiled, layouts in _offers(bench):
        feeds = sample.feeds(71)
        plain = _run(bench, compiled, {}, feeds)
        for port, offered in layouts.items():
            if not port.is_input or not offered:
                continue
            inputs = [
                _host(feeds[one.name], offered[0] if one is port else None)
                for one in compiled.inputs
            ]
            try:
                results = compiled.create_runner().run(inputs)
            except InferError:
                continue
            what = f"'{port.name}' of '{sample.name}' in a layout that was not chosen"
            compare([tensor.numpy() for tensor in results], plain, what)


@check("boundary")
def bound_calls_compute_what_inputs_hold(bench: Bench) -> None:
    """A bound call computes anew at each call, into the outputs that it was made for."""
    tried = 0
    for sample in (*_small(), *networks()):
        if bench.refusals(sample.proto):
            continue
        compiled = bench.compile(sample.proto).device_model
        feeds = sample.feeds(72)
        runner = compiled.create_runner()
        expected = [tensor.numpy().copy() for tensor in runner.run(_inputs(compiled, feeds))]
        inputs = _inputs(compiled, {name: np.zeros_like(x) for name, x in feeds.items()})
        outputs = [partita.HostTensor(np.zeros_like(array)) for array in expected]
        scratch = np.full(compiled.scratch_bytes, 255, np.uint8)
        bound_call = runner.bind(inputs, outputs, scratch)
        if bound_call is None:
            continue
        tried += 1
        bound_call()
        for port, tensor in zip(compiled.inputs, inputs, strict=True):
            np.copyto(tensor.numpy(), feeds[port.name])
        for _ in range(2):
            scratch[:] = 255  # others have used it meanwhile
            bound_call()
            compare([o.numpy() for o in outputs], expected, f"a bound call of '{sample.name}'")
        kept = [o.numpy().copy() for o in outputs]
        runner.run(_inputs(compiled, sample.feeds(73)))
        compare([o.numpy() for o in outputs], kept, f"'{sample.name}' after a run on other tensors")
        bound_call()
        compare([o.numpy() for o in outputs], expected, f"'{sample.name}' after a run, repeated")
    if not tried:
        raise NotApplicableError("the device repeats no run")


@check("boundary", values=True)
def bound_calls_read_the_inputs_that_they_are_rebound_to(bench: Bench) -> None:
    """A bound call that says that it reads other inputs reads each of them, one or all."""
    tried = 0
    for sample in (*samples("pair"), *narrow_samples("pair")):
        if bench.refusals(sample.proto):
            continue
        compiled = bench.compile(sample.proto).device_model
        first, second = _inputs(compiled, sample.feeds(74)), _inputs(compiled, sample.feeds(75))
        runner = compiled.create_runner()
        outputs = [partita.HostTensor(tensor.numpy().copy()) for tensor in runner.run(list(first))]
        scratch = np.zeros(compiled.scratch_bytes, np.uint8)
        bound_call = runner.bind(list(first), outputs, scratch)
        if bound_call is None:
            continue
        for changed in ((second[0], first[1]), second, (second[0], first[1]), first):
            if not bound_call.rebind(list(changed)):
                continue
            tried += 1
            bound_call()
            names = [port.name for port in compiled.inputs]
            feeds = {n: t.numpy() for n, t in zip(names, changed, strict=True)}
            due = bench.expected(sample.proto, feeds)
            compare([o.numpy() for o in outputs], due, f"'{sample.name}', bound to other inputs")
    if not tried:
        raise NotApplicableError("the device rebinds no call")


@check("boundary", values=True)
def a_runner_is_bound_again(bench: Bench) -> None:
    """What a runner binds last reads and writes the tensors that it was given last."""
    sample = bench.sample("pair")
    compiled = bench.compile(sample.proto).device_model
    runner = compiled.create_runner()
    tried = 0
    for seed in (76, 77, 78):
        feeds = sample.feeds(seed)
        inputs, due = _inputs(compiled, feeds), bench.expected(sample.proto, feeds)
        outputs = [partita.HostTensor(np.full_like(array, 9)) for array in due]
        bound_call = runner.bind(inputs, outputs, np.zeros(compiled.scratch_bytes, np.uint8))
        if bound_call is None:
            continue
        tried += 1
        bound_call()
        what = f"'{sample.name}', bound for the {tried}. time"
        compare([tensor.numpy() for tensor in outputs], due, what)
    if not tried:
        raise NotApplicableError("the device binds no call")


@check("boundary", values=True)
def calls_are_bound_beside_each_other(bench: Bench) -> None:
    """Each of several calls of one runner has tensors of its own, of its own shapes."""
    sample = bench.sample("dynamic")
    compiled = bench.compile(sample.proto).device_model
    runner = compiled.create_runner()
    calls: list[tuple[BoundCall, list[partita.HostTensor], list[Array]]] = []
    for seed, rows in ((80, 3), (81, 5), (82, 3), (83, 2)):
        feeds = sample.feeds(seed, N=rows)
        due = bench.expected(sample.proto, feeds)
        inputs = _inputs(compiled, feeds)
        runner.run(list(inputs))  # inputs of a bound call hold the elements of the run before
        outputs = [partita.HostTensor(np.full_like(array, 9)) for array in due]
        call = runner.bind(inputs, outputs, np.zeros(compiled.scratch_bytes, np.uint8))
        if call is not None:
            calls.append((call, outputs, due))
    if not calls:
        raise NotApplicableError("the device binds no call")
    for number in (0, 3, 1, 2, 0, 1):
        if number >= len(calls):
            continue
        for _, outputs, _ in calls:
            for tensor in outputs:
                tensor.numpy()[...] = 9
        try:
            calls[number][0]()
        except BoundCallEndedError:  # it says so; the caller is to run instead
            continue
        for other, (_, outputs, due) in enumerate(calls):
            what = f"'{sample.name}', output of call {other + 1} after call {number + 1}"
            untouched = [np.full_like(array, 9) for array in due]
            compare([o.numpy() for o in outputs], due if other == number else untouched, what)


@check("boundary", values=True)
def bound_calls_read_inputs_that_lie_anywhere(bench: Bench) -> None:
    """A call that reads other inputs reads them wherever they lie, also where nobody may write."""
    sample = bench.sample("dynamic")
    compiled = bench.compile(sample.proto).device_model
    runner = compiled.create_runner()
    tried = 0
    feeds = sample.feeds(84, N=4)
    due = bench.expected(sample.proto, feeds)
    inputs = _inputs(compiled, feeds)
    runner.run(list(inputs))
    outputs = [partita.HostTensor(np.zeros_like(array)) for array in due]
    call = runner.bind(list(inputs), outputs, np.zeros(compiled.scratch_bytes, np.uint8))
    if call is None:
        raise NotApplicableError("the device binds no call")
    for seed in range(4):
        others = sample.feeds(85 + seed, N=4)
        moved = [_behind(others[port.name]) for port in compiled.inputs]
        for array in moved:
            array.flags.writeable = bool(seed % 2)
        if call.rebind([partita.HostTensor(array) for array in moved]):
            tried += 1
            call()
            what = f"'{sample.name}', rebound to inputs that begin behind an element, {seed + 1}"
            compare([o.numpy() for o in outputs], bench.expected(sample.proto, others), what)
    if not tried:
        raise NotApplicableError("the device rebinds no call")


def _behind(array: Array) -> Array:
    """The array, one element behind where its memory begins."""
    block = np.zeros(array.size + 1, array.dtype)
    block[1:] = array.reshape(-1)
    return block[1:].reshape(array.shape)


def _inputs(compiled: partita.DeviceModel, feeds: Mapping[str, Array]) -> list[partita.HostTensor]:
    return [partita.HostTensor(feeds[port.name].copy()) for port in compiled.inputs]


_BLOCKS = (64, 4096, 1 << 20, 1001, 3, 1)
"""Bytes of host memory that are asked for; not all are whole words."""


@check("boundary")
def offers_host_memory_that_lasts(bench: Bench) -> None:
    """host_memory() gives bytes that can be written, that copies use, and that stay.

    Also when blocks of the same size are asked for, while others are there and when some are gone.
    """
    sizes = [*_BLOCKS, *_BLOCKS[::-1]]
    api = bench.core.device_api
    blocks = {number: api.host_memory(bench.device, size) for number, size in enumerate(sizes)}
    if all(block is None for block in blocks.values()):
        raise NotApplicableError("the device offers no host memory")
    for number, block in blocks.items():
        _require_bytes(block, sizes[number], number + 1)
    _require_kept(bench, blocks)
    for number in range(1, len(sizes), 3):
        del blocks[number]
    gc.collect()
    for number in range(1, len(sizes), 3):
        blocks[number] = api.host_memory(bench.device, sizes[number])
        _require_bytes(blocks[number], sizes[number], number + 1)
    _require_kept(bench, blocks)


def _require_bytes(block: Array | None, size: int, number: int) -> None:
    """Looks at a block of host memory, and writes a number to all of it."""
    if block is None:
        return
    require(
        isinstance(block, np.ndarray) and block.dtype == np.uint8 and block.ndim == 1,
        f"host_memory gives {block!r}, no row of bytes.",
    )
    require(block.nbytes == size, f"Host memory of {size} bytes has {block.nbytes} bytes.")
    require(block.flags.writeable, "Host memory cannot be written.")
    block[:] = number


def _require_kept(bench: Bench, blocks: Mapping[int, Array | None]) -> None:
    """Fails unless each block holds its number, and copies of all of them hold theirs."""
    api = bench.core.device_api
    have = {number: block for number, block in blocks.items() if block is not None}
    copies = {n: api.transfer_to(bench.device, partita.HostTensor(b)) for n, b in have.items()}
    for number, block in have.items():
        kept = bool((block == number + 1).all())
        require(kept, f"What was written to {block.nbytes} bytes of host memory has changed.")
        back = partita.HostTensor(np.zeros_like(block))
        copies[number].copy_to(back)
        compare([back.numpy()], [block], "a tensor in it, on the device and back")
