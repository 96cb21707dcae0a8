"""Suite ``state``: outputs that runs write over an input, where a device offers that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

import partita
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require

Array = np.ndarray[Any, Any]

_ROWS, _WIDTH = 12, 4
_GUARD = 64
"""Elements before and behind a cache that nothing may write."""

_MARK = -77.0

_SCATTER = (
    f"g (float[1,s,{_WIDTH}] x, int64[1] at, float[1,{_ROWS},{_WIDTH}] past)"
    f" => (float[1,{_ROWS},{_WIDTH}] y, float[1,{_ROWS},{_WIDTH}] present)"
    " { present = TensorScatter <axis = 1> (past, x, at) y = Neg(present) }"
)
_ATTENTION = (
    f"g (float[1,s,{2 * _WIDTH}] q, float[1,s,{_WIDTH}] k, float[1,s,{_WIDTH}] v,"
    f" float[1,1,{_ROWS},{_WIDTH}] keys, float[1,1,{_ROWS},{_WIDTH}] values,"
    " int32[1] last, int32 total)"
    f" => (float[1,s,{2 * _WIDTH}] y, float[1,1,{_ROWS},{_WIDTH}] new_keys,"
    f" float[1,1,{_ROWS},{_WIDTH}] new_values)"
    " { y, new_keys, new_values = com.microsoft.GroupQueryAttention"
    " <num_heads = 2, kv_num_heads = 1> (q, k, v, keys, values, last, total) }"
)


def _read_twice(outputs: str, steps: str) -> str:
    cache = f"float[1,{_ROWS},{_WIDTH}]"
    return (
        f"g (float[1,s,{_WIDTH}] x, int64[1] at, {cache} past) => ({outputs.format(cache)})"
        f" {{ {steps.format('TensorScatter <axis = 1> (past, x, at)')} }}"
    )


_READ_TWICE = {
    "a cache read afterwards": _read_twice("{0} present, {0} y", "present = {} y = Neg(past)"),
    "a cache read before": _read_twice("{0} present, {0} y", "y = Neg(past) present = {}"),
    "a cache beside what becomes of it": _read_twice(
        "{0} present, {0} y", "present = {} y = Sub(present, past)"
    ),
    "a cache that is a result": _read_twice(
        "{0} present, {0} y", "y = Identity(past) present = {}"
    ),
    "a cache that a branch reads": _read_twice(
        "{0} present, {0} y",
        "present = {} c = Cast <to = 9> (at) y = If (c) <then_branch = p ()"
        f" => (float[1,{_ROWS},{_WIDTH}] e) {{{{ e = Neg(past) }}}}, else_branch = q ()"
        f" => (float[1,{_ROWS},{_WIDTH}] f) {{{{ f = Abs(past) }}}}>",
    ),
    "a cache written twice": _read_twice(
        "{0} present, {0} y", "present = {0} u = Neg(x) y = TensorScatter <axis = 1> (past, u, at)"
    ),
}
"""Models in which something else reads what a run may write over."""


class _Decoder(NamedTuple):
    """A model with caches, as far as a device updates them in place.

    Attributes:
        name: What messages call it.
        proto: The model.
        compiled: It, on the device.
        pairs: By output the input that it is written over.
    """

    name: str
    proto: onnx.ModelProto
    compiled: partita.CompiledModel
    pairs: Mapping[int, int]


def _decoders(bench: Bench, read_by_others: bool = False) -> list[_Decoder]:
    """Those of the models that the device takes, if it updates anything in place.

    Args:
        bench: The device.
        read_by_others: Whether other operations read the caches, too.

    Raises:
        NotApplicableError: It does not.
    """
    found = []
    alone = (("TensorScatter", _SCATTER), ("GroupQueryAttention", _ATTENTION))
    for name, text in _READ_TWICE.items() if read_by_others else alone:
        proto = parse(text)
        proto.ir_version = 10
        proto.ClearField("opset_import")
        opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
        proto.opset_import.extend(opsets)
        if bench.refusals(proto):
            continue
        compiled = bench.compile(proto)
        pairs = compiled.device_model.in_place_outputs()
        if pairs:
            found.append(_Decoder(name, proto, compiled, pairs))
    if not found and not read_by_others:
        raise NotApplicableError("the device updates no cache of the models in place")
    return found


def _steps(decoder: _Decoder) -> Iterator[dict[str, Array]]:
    """Inputs of a prompt of three tokens, then of one token at a time; without caches."""
    rng = np.random.default_rng(11)
    caches = {decoder.compiled.inputs[source].name for source in decoder.pairs.values()}
    for count, at in [(3, 0), *((1, place) for place in range(3, _ROWS))]:
        whole = {"at": [at], "last": [at + count - 1], "total": at + count}
        yield {
            port.name: np.array(whole[port.name], port.dtype)
            if port.name in whole
            else rng.standard_normal((1, count, *_tail(port.shape))).astype(np.float32)
            for port in decoder.compiled.inputs
            if port.name not in caches
        }


def _tail(shape: Any) -> tuple[int, ...]:
    return tuple(shape[2:])


class _Judge:
    """The right answers of one step after another."""

    def __init__(self, bench: Bench, decoder: _Decoder) -> None:
        self._bench, self._decoder = bench, decoder
        inputs = decoder.compiled.inputs
        self.caches = {
            source: np.zeros(_shape(inputs[source]), inputs[source].dtype)
            for source in decoder.pairs.values()
        }

    def outputs(self, feeds: Mapping[str, Array]) -> list[Array]:
        """What is due for these inputs, after the steps before."""
        inputs = self._decoder.compiled.inputs
        pasts = {inputs[source].name: cache for source, cache in self.caches.items()}
        due = self._bench.expected(self._decoder.proto, {**feeds, **pasts})
        self.caches = {source: due[made] for made, source in self._decoder.pairs.items()}
        return due


def _arguments(
    decoder: _Decoder, feeds: Mapping[str, Array], caches: Mapping[int, partita.Tensor]
) -> tuple[list[partita.Tensor], list[partita.Tensor | None]]:
    """Inputs and outputs of a run that updates caches in place."""
    inputs = [
        caches[port.index] if port.index in caches else partita.HostTensor(feeds[port.name])
        for port in decoder.compiled.inputs
    ]
    outputs: list[partita.Tensor | None] = [None] * len(decoder.compiled.outputs)
    for made, source in decoder.pairs.items():
        outputs[made] = caches[source]
    return inputs, outputs


def _allocated(decoder: _Decoder) -> dict[int, partita.Tensor]:
    """Tensors of the device for the caches."""
    model = decoder.compiled.device_model
    ports = [model.inputs[source] for source in decoder.pairs.values()]
    return {port.index: model.allocate(port, _shape(port)) for port in ports}


def _shape(port: partita.Port) -> tuple[int, ...]:
    """The dimensions of a port, all of which the models give."""
    return tuple(dim for dim in port.shape or () if isinstance(dim, int))


def _elements(decoder: _Decoder, results: Any, caches: Mapping[int, partita.Tensor]) -> list[Array]:
    """All outputs of a run; those that are state out of the tensors that hold it."""
    return [
        (caches[decoder.pairs[index]] if index in decoder.pairs else result).numpy()
        for index, result in enumerate(results)
    ]


@check("state")
def pairs_are_of_ports_alike(bench: Bench) -> None:
    """What is written over an input has its type and shape, and no other output is."""
    for decoder in _decoders(bench):
        inputs, outputs = decoder.compiled.inputs, decoder.compiled.outputs
        sources = list(decoder.pairs.values())
        require(len(set(sources)) == len(sources), f"{decoder.name}: two outputs over one input.")
        for made, source in decoder.pairs.items():
            there = made in range(len(outputs)) and source in range(len(inputs))
            require(there, f"{decoder.name}: output {made} over input {source}: no such ports.")
            one, other = outputs[made], inputs[source]
            alike = (one.dtype, one.shape) == (other.dtype, other.shape)
            said = f"{decoder.name}: '{one.name}' over '{other.name}', which is not like it."
            require(alike, said)


@check("state")
def memory_is_zero_and_can_be_written(bench: Bench) -> None:
    """What the device allocates is zero, takes elements from the host, and is cleared."""
    for decoder in _decoders(bench):
        for index, tensor in (item for _ in range(3) for item in _allocated(decoder).items()):
            port = decoder.compiled.inputs[index]
            found = (tensor.dtype, tensor.shape)
            require(found == (port.dtype, port.shape), f"{decoder.name}: {tensor!r} is no {port}.")
            require(not tensor.numpy().any(), f"{decoder.name}: allocated memory is not zero.")
            drawn = np.random.default_rng(5).standard_normal(tensor.shape).astype(tensor.dtype)
            tensor.copy_from(partita.HostTensor(drawn))
            same = np.array_equal(tensor.numpy(), drawn)
            require(same, f"{decoder.name}: copy_from did not write what it was given.")
            tensor.clear()
            require(not tensor.numpy().any(), f"{decoder.name}: clear left something.")
            tensor.copy_from(partita.HostTensor(drawn))  # and is given back with that


@check("state", values=True)
def steps_in_place_are_right(bench: Bench) -> None:
    """One tensor for past and present gives what two give, also if a step is made twice."""
    for decoder in _decoders(bench):
        runner = decoder.compiled.device_model.create_runner()
        caches, judge = _allocated(decoder), _Judge(bench, decoder)
        for number, feeds in enumerate(_steps(decoder)):
            due = judge.outputs(feeds)
            inputs, outputs = _arguments(decoder, feeds, caches)
            for time in ("", ", made again"):
                results = runner.run(inputs, outputs)
                for made, source in decoder.pairs.items():
                    said = f"{decoder.name}: output {made} did not go where its input lies."
                    require(results[made] is caches[source], said)
                found = _elements(decoder, results, caches)
                compare(found, due, f"{decoder.name}, step {number} in place{time}")
        runner.close()


@check("state", values=True)
def others_that_read_a_cache_read_the_past(bench: Bench) -> None:
    """Where others read a cache that is written over, they see what it held before the step."""
    _decoders(bench)  # not applicable where nothing is ever written over
    for decoder in _decoders(bench, read_by_others=True):
        runner = decoder.compiled.device_model.create_runner()
        caches, judge = _allocated(decoder), _Judge(bench, decoder)
        for number, feeds in enumerate(_steps(decoder)):
            due = judge.outputs(feeds)
            inputs, outputs = _arguments(decoder, feeds, caches)
            found = _elements(decoder, runner.run(inputs, outputs), caches)
            compare(found, due, f"{decoder.name}, step {number}")
        runner.close()


@check("state", values=True)
def requests_may_share_a_cache(bench: Bench) -> None:
    """Where two requests write to one cache in turns, each reads what the other has written."""
    for decoder in _decoders(bench):
        runners = [decoder.compiled.device_model.create_runner() for _ in range(2)]
        caches, judge = _allocated(decoder), _Judge(bench, decoder)
        for number, feeds in enumerate(_steps(decoder)):
            due = judge.outputs(feeds)
            inputs, outputs = _arguments(decoder, feeds, caches)
            found = _elements(decoder, runners[number % 2].run(inputs, outputs), caches)
            compare(found, due, f"{decoder.name}, step {number} of two requests in turns")
        for runner in runners:
            runner.close()


@check("state", values=True)
def steps_apart_leave_the_past(bench: Bench) -> None:
    """Where past and present are two tensors, the past stays as it was."""
    for decoder in _decoders(bench):
        runner = decoder.compiled.device_model.create_runner()
        judge = _Judge(bench, decoder)
        for number, feeds in enumerate(_steps(decoder)):
            pasts = {index: cache.copy() for index, cache in judge.caches.items()}
            due = judge.outputs(feeds)
            given = {index: partita.HostTensor(cache) for index, cache in pasts.items()}
            before = {index: cache.copy() for index, cache in pasts.items()}
            inputs, _ = _arguments(decoder, feeds, given)
            found = [tensor.numpy() for tensor in runner.run(inputs)]
            compare(found, due, f"{decoder.name}, step {number} apart")
            for index, cache in pasts.items():
                same = np.array_equal(cache, before[index])
                require(same, f"{decoder.name}: step {number} wrote to the past.")
        runner.close()


@check("state", values=True)
def nothing_beside_a_cache_is_written(bench: Bench) -> None:
    """Memory before and behind the tensor that is updated stays as it was."""
    for decoder in _decoders(bench):
        runner = decoder.compiled.device_model.create_runner()
        judge = _Judge(bench, decoder)
        blocks, caches = {}, {}
        for index, cache in judge.caches.items():
            block = np.full(cache.size + 2 * _GUARD, _MARK, cache.dtype)
            inner = block[_GUARD:-_GUARD].reshape(cache.shape)
            inner[...] = 0
            blocks[index], caches[index] = block, partita.HostTensor(inner)
        for number, feeds in enumerate(_steps(decoder)):
            due = judge.outputs(feeds)
            inputs, outputs = _arguments(decoder, feeds, caches)
            results = list(runner.run(inputs, outputs))
            for made, source in decoder.pairs.items():
                if results[made] is not caches[source]:
                    caches[source].copy_from(results[made])
            found = _elements(decoder, results, caches)
            compare(found, due, f"{decoder.name}, step {number} in memory of the host")
            for block in blocks.values():
                edges = np.concatenate([block[:_GUARD], block[-_GUARD:]])
                said = f"{decoder.name}: step {number} wrote beside the cache."
                require(bool((edges == _MARK).all()), said)
        runner.close()


@check("state", values=True)
def bound_steps_are_right(bench: Bench) -> None:
    """A bound call updates the caches that it was bound to, step after step."""
    tried = 0
    for decoder in _decoders(bench):
        runner = decoder.compiled.device_model.create_runner()
        caches, judge = _allocated(decoder), _Judge(bench, decoder)
        call, read, written = None, {}, []
        for number, feeds in enumerate(_steps(decoder)):
            due = judge.outputs(feeds)
            if call is None:
                inputs, outputs = _arguments(decoder, feeds, caches)
                results = runner.run(inputs, outputs)
                if number:  # tokens come one at a time from here on
                    read = {name: array.copy() for name, array in feeds.items()}
                    written = [
                        results[i] if i in decoder.pairs else partita.HostTensor(due[i].copy())
                        for i in range(len(due))
                    ]
                    call = runner.bind(_arguments(decoder, read, caches)[0], written)
                    tried += call is not None
                continue
            for name, array in feeds.items():
                read[name][...] = array
            call()
            compare([x.numpy() for x in written], due, f"{decoder.name}, bound step {number}")
        runner.close()
    if not tried:
        raise NotApplicableError("the device binds no call")
