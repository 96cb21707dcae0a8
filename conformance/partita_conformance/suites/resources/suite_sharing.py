"""Suite ``sharing``: outputs own their memory, inputs lie anywhere, answers stay the same."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

import partita
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Sample, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import require
from partita_conformance.suites.feeding import host_tensors

Array = np.ndarray[Any, Any]

_WEIGHTS: dict[str, Array] = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3) + 0.5,
    "s": np.array([3, 2], np.int64),
    "n": np.array([1, 1], np.int64),
    "truth": np.array(1, np.int64),
}
_TEXTS = {
    "Identity": "g (float[2,3] x) => (float[2,3] y) { y = Identity(x) }",
    "Identity of a weight": "g (float[2,3] x) => (float[2,3] y, float[2,3] z) {"
    " y = Identity(w) z = Add(x, w) }",
    "a weight": "g (float[2,3] x) => (float[2,3] w, float[2,3] z) { z = Add(x, w) }",
    "a weight alone": "g (float[2,3] x) => (float[2,3] w, float[2,3] x) { }",
    "a constant": "g (float[2,3] x) => (float[2] y, float[2,3] z) {"
    " y = Constant <value_floats = [0.5, -2.0]> () z = Neg(x) }",
    "folded constants": "g (float[2,3] x) => (float[2,3] y, float[3,2] z, float[2,3] u) {"
    " y = Neg(w) z = Reshape(w, s) u = Add(x, w) }",
    "a choice of constants": "g (float[2,3] x) => (float[2,3] y) { t = Cast <to = 9> (truth)"
    " y = If (t) <then_branch = p () => (float[2,3] b) { b = Identity(w) },"
    " else_branch = q () => (float[2,3] c) { c = Neg(w) }> }",
    "an input": "g (float[2,3] x) => (float[2,3] x, float[2,3] z) { z = Neg(x) }",
    "Reshape": "g (float[2,3] x) => (float[3,2] y) { y = Reshape(x, s) }",
    "Flatten": "g (float[2,3] x) => (float[1,6] y) { y = Flatten <axis = 0> (x) }",
    "Transpose": "g (float[2,3] x) => (float[2,3] y) { y = Transpose <perm = [0, 1]> (x) }",
    **{
        f"{op} of one": f"g (float[2,3] x) => (float[2,3] y) {{ y = {op}(x) }}"
        for op in ("Sum", "Mean", "Max", "Min", "Concat <axis = 0> ", "Cast <to = 1> ")
    },
    "Tile by ones": "g (float[2,3] x) => (float[2,3] y) { y = Tile(x, n) }",
    "Expand to less": "g (float[2,3] x) => (float[2,3] y) { y = Expand(x, n) }",
    "Identity twice": "g (float[2,3] x) => (float[2,3] y, float[2,3] z) {"
    " a = Abs(x) y = Identity(a) z = Identity(a) }",
    "one value in two shapes": "g (float[2,3] x) => (float[2,3] y, float[3,2] z) {"
    " y = Abs(x) z = Reshape(y, s) }",
    "two outputs": "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Abs(x) z = Neg(x) }",
    "Split": "g (float[2,3] x) => (float[1,3] y, float[1,3] z) { y, z = Split <axis = 0> (x) }",
}
"""Models whose outputs invite a device to hand on memory of somebody else."""


def lending_models(bench: Bench) -> list[Sample]:
    """Those of the models that the device takes.

    Raises:
        NotApplicableError: None of them.
    """
    models = ((name, _parsed(text, _WEIGHTS)) for name, text in _TEXTS.items())
    return [Sample(name, proto) for name, proto in bench.taken(models)]


def _parsed(text: str, weights: Mapping[str, Array]) -> onnx.ModelProto:
    """A model from ONNX's text, with those of some weights that it reads."""
    return parse(text, {n: a for n, a in weights.items() if re.search(rf"\b{n}[,)]", text)})


def _arrays(tensors: Sequence[Any]) -> list[Array]:
    return [tensor.numpy() for tensor in tensors]


@check("sharing", values=True)
def outputs_have_memory_of_their_own(bench: Bench) -> None:
    """No output lies where an input, a weight or another output does; what is written stays."""
    for sample in lending_models(bench):
        compiled = bench.compile(sample.proto)
        runner = compiled.device_model.create_runner()
        feeds = sample.feeds(3)
        expected = bench.expected(sample.proto, feeds)
        arrays = [feeds[port.name].copy() for port in compiled.inputs]
        outputs = _arrays(runner.run([partita.HostTensor(array) for array in arrays]))
        compare(outputs, expected, sample.name)
        for i, output in enumerate(outputs):
            for array in arrays:
                require(
                    not np.shares_memory(output, array), f"{sample.name}: an output is an input."
                )
            for other in outputs[i + 1 :]:
                require(not np.shares_memory(output, other), f"{sample.name}: two outputs are one.")
        for array in arrays:
            array[...] = -77
        compare(outputs, expected, f"{sample.name}, after its inputs were overwritten")
        for output in outputs:
            require(output.flags.writeable, f"{sample.name}: an output cannot be written to.")
            output[...] = 99
        inputs = host_tensors(compiled, feeds)
        again = _arrays(runner.run(inputs))
        compare(again, expected, f"{sample.name}, after its outputs were overwritten")
        anew = _arrays(bench.compile(sample.proto).device_model.create_runner().run(inputs))
        compare(anew, expected, f"{sample.name}, compiled anew")
        runner.close()


@check("sharing", values=True)
def models_and_requests_do_not_share(bench: Bench) -> None:
    """Results of several requests and models that one thread runs in turn stay as they were."""
    for sample in (bench.sample("plain"), *lending_models(bench)):
        _do_not_share(bench, sample)


def _do_not_share(bench: Bench, sample: Sample) -> None:
    first = bench.compile(sample.proto)
    runners = [c.device_model.create_runner() for c in (first, first, bench.compile(sample.proto))]
    inputs = [sample.feeds(90 + i) for i in range(3)]
    kept = []
    for runner, feeds in zip(runners, inputs, strict=True):
        tensors = host_tensors(first, feeds)
        kept.append(_arrays(runner.run(tensors)))
    for one, other in itertools.combinations(kept, 2):
        for output, another in itertools.product(one, other):
            require(
                not np.shares_memory(output, another),
                f"{sample.name}: outputs of two requests share memory.",
            )
    for i, (outputs, feeds) in enumerate(zip(kept, inputs, strict=True)):
        what = f"{sample.name}, request {i} after others ran"
        compare(outputs, bench.expected(sample.proto, feeds), what)


_MANY, _MANY_MODELS = 70, 20


@check("sharing", values=True)
def many_requests_do_not_share(bench: Bench) -> None:
    """Dozens of requests, and models, that are there together each have results of their own."""
    sample = lending_models(bench)[0]
    compiled = bench.compile(sample.proto)
    requests = [compiled.create_infer_request() for _ in range(_MANY)]
    requests += [bench.compile(sample.proto).create_infer_request() for _ in range(_MANY_MODELS)]
    for turn in range(2):
        seeds = [100 * turn + number for number in range(len(requests))]
        kept = [
            request.infer(sample.feeds(seed), share_outputs=True).to_tuple()
            for request, seed in zip(requests, seeds, strict=True)
        ]
        for number, (arrays, seed) in enumerate(zip(kept, seeds, strict=True)):
            due = bench.expected(sample.proto, sample.feeds(seed))
            compare(arrays, due, f"{sample.name}, request {number + 1} of {len(requests)}")


def _moved(array: Array, offset: int) -> Array:
    """The array, its first byte ``offset`` bytes behind a multiple of 64."""
    block = np.zeros(array.nbytes + 128, np.uint8)
    start = -block.ctypes.data % 64 + offset
    moved = block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


@check("sharing", values=True)
def inputs_may_lie_anywhere(bench: Bench) -> None:
    """Inputs at any address, also at none that their type is aligned to, give the same results."""
    for kind in ("plain", "large", "pair", "dynamic"):
        sample = bench.sample(kind)
        request = bench.compile(sample.proto).create_infer_request()
        feeds = sample.feeds(12)
        expected = bench.expected(sample.proto, feeds)
        for offset in (0, 4, 8, 20, 32, 1, 2, 3):
            moved = {name: _moved(array, offset) for name, array in feeds.items()}
            for _ in range(2):
                result = request.infer(moved).to_tuple()
                compare(result, expected, f"{sample.name}, inputs at address 64 n + {offset}")


@check("sharing", values=True)
def outputs_may_lie_anywhere(bench: Bench) -> None:
    """Outputs that are given are written whole, wherever an element may lie, and nothing beside."""
    for kind in ("plain", "large", "outputs"):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto)
        runner, request = compiled.device_model.create_runner(), compiled.create_infer_request()
        feeds = sample.feeds(13)
        expected = bench.expected(sample.proto, feeds)
        for offset in (0, 4, 8, 20, 32):
            what = f"{sample.name}, outputs at address 64 n + {offset}"
            given = [partita.HostTensor(_moved(np.full_like(a, 9), offset)) for a in expected]
            inputs = host_tensors(compiled, feeds)
            compare(_arrays(runner.run(inputs, given)), expected, what)
            for index, array in enumerate(expected):
                block = np.full(array.nbytes + 128, 77, np.uint8)
                start = -block.ctypes.data % 64 + offset
                place = block[start : start + array.nbytes].view(array.dtype)
                request.set_output_tensor(index, partita.HostTensor(place.reshape(array.shape)))
                request.infer(feeds)
                compare([place.reshape(array.shape)], [array], f"{what}, of a request")
                beside = (*block[:start], *block[start + array.nbytes :])
                require(set(beside) == {77}, f"{what}: a run writes beside an output.")


@check("sharing", values=True)
def the_same_question_has_one_answer(bench: Bench) -> None:
    """Forty runs, two inputs in turn, give the same numbers to the last digits, as others' do."""
    for kind in ("plain", "outputs"):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto)
        request = compiled.create_infer_request()
        inputs = [sample.feeds(seed) for seed in (70, 71)]
        first = [[a.copy() for a in request.infer(feeds).to_tuple()] for feeds in inputs]
        for have, feeds in zip(first, inputs, strict=True):
            compare(have, bench.expected(sample.proto, feeds), sample.name)
        for turn in range(2, 40):
            result = request.infer(inputs[turn % 2]).to_tuple()
            what = f"{sample.name}, run {turn + 1} beside run {turn % 2 + 1}"
            compare(result, first[turn % 2], what, 1e-6, 1e-6, of_largest=0)
        other, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
        for turn in range(12):
            for again, who in (
                ([*other.infer(inputs[turn % 2]).to_tuple()], "another request"),
                (_arrays(runner.run(host_tensors(compiled, inputs[turn % 2]))), "a runner"),
            ):
                what = f"{sample.name}, run {turn + 1} of {who} beside the first request"
                compare(again, first[turn % 2], what, 1e-6, 1e-6, of_largest=0)
        runner.close()


_FREE = (
    "g (float[N,M] x, float[M] c) => (float[N,M] y) { a = Mul(x, x) y = Add(a, c) }",
    "g (float[N,M] x, float[K,M] c) => (float[P,M] y) { y = Concat <axis = 0> (x, c) }",
    "g (float[N,M] x, float[M,K] c) => (float[N,K] y) { y = MatMul(x, c) }",
    "g (float[N,M] x) => (float[M,N] y) { y = Transpose <perm = [1, 0]> (x) }",
    "g (float[N,M] x) => (float[N,M] y) { y = Relu(x) }",
    "g (float[N,M] x) => (float[N,M] y) { y = Softmax <axis = -1> (x) }",
    "g (float[N,M] x) => (float[N,1] y) { y = ReduceMax <axes = [1], keepdims = 1> (x) }",
    "g (float[N,M] x) => (int64[2] y) { y = Shape(x) }",
    "g (float[N,M] x, float[K,M] c) => (float[K,M] y) { s = Shape(x) f = Cast <to = 1> (s)"
    " r = ReduceSum <keepdims = 0> (f) y = Add(c, r) }",
    "g (float[N,M] x, float[M] c) => (float[N,M] y) { s = Shape(x) z = Expand(c, s)"
    " y = Sub(x, z) }",
)
_SIZES = (
    (4, 4, 4),
    (4, 6, 3),
    (6, 4, 3),
    (2, 12, 6),
    (24, 1, 5),
    (4, 6, 2),
    (3, 8, 1),
    (1, 24, 4),
    (4, 6, 3),
    (4, 4, 4),
)


_OF_ONE_HASH = ((2, 1, 3), (1, 32, 3), (2, 1, 3), (1, 34, 3), (1, 2, 3), (2, 1, 3), (3, 0, 3))
"""Sizes of which sums, exclusive ors and usual polynomials (by 31 and by 33) are the same."""


@check("sharing", values=True)
def equal_sizes_in_other_shapes(bench: Bench) -> None:
    """Shapes of as many elements, and as many rows beside other columns, are not mixed up."""
    for text, proto in bench.taken((text, parse(text)) for text in _FREE):
        sample = Sample("free", proto)
        request = bench.compile(proto).create_infer_request()
        sizes = (*_SIZES, (0, 5, 2), (5, 3, 2), *_SIZES[:3], *_OF_ONE_HASH)
        for turn, (n, m, k) in enumerate(sizes):
            feeds = sample.feeds(turn, N=n, M=m, K=k, P=n + k)
            what = f"{text.rpartition('{')[2]} of {n} x {m}, run {turn + 1}"
            compare(request.infer(feeds).to_tuple(), bench.expected(proto, feeds), what)


_BORDERED = (
    "g (float[1,2,N,M] x) => (float[1,3,N,M] y) { y = Conv <pads = [1,1,1,1]> (x, w) }",
    "g (float[1,2,N,M] x) => (float[1,2,N,M] y) { y = Conv <pads = [1,1,1,1], group = 2> (x, d) }",
    "g (float[1,2,N,M] x) => (float[1,3,P,Q] y) { y = ConvTranspose(x, t) }",
    "g (float[1,2,N,M] x) => (float[1,2,N,M] y) {"
    " y = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (x) }",
    "g (float[1,2,N,M] x) => (float[1,2,N,M] y) {"
    " y = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (x) }",
    "g (float[1,2,N,M] x) => (float[1,2,1,1] y) { y = GlobalAveragePool(x) }",
    "g (float[1,2,N,M] x) => (float[1,2,1,1] y) { y = GlobalMaxPool(x) }",
    "g (float[1,2,N,M] x) => (float[1,2,P,Q] y) { y = Pad(x, p) }",
    "g (float[1,2,N,M] x) => (float[1,2,N,M] y) { y = Softmax <axis = -1> (x) }",
    "g (float[1,2,N,M] x) => (float[1,2,N,1] y) { y = ReduceSum(x, a) }",
    "g (float[1,2,N,M] x) => (float[1,2,N,M] y) { y = CumSum(x, c) }",
    "g (float[1,2,N,M] x, float[1,2,M,N] z) => (float[1,2,N,N] y) { y = MatMul(x, z) }",
    "g (float[1,2,N,M] x) => (float[P,Q] y) { y = Flatten <axis = 2> (x) }",
)
_ROWED = tuple(
    f"g (float[N,M] x) => ({kind} y) {{ y = {op} }}"
    for kind, op in (
        ("float[A,M]", "ReduceSum <keepdims = 1> (x, first)"),
        *(
            ("float[A,M]", f"{name} <axes = [0]> (x)")
            for name in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2")
        ),
        ("float[M]", "ReduceSum <keepdims = 0> (x, first)"),
        ("float", "ReduceSum <keepdims = 0> (x)"),
        ("int64[A,M]", "ArgMax <axis = 0> (x)"),
        ("float[N,M]", "Softmax <axis = 0> (x)"),
        ("float[N,M]", "CumSum(x, rows)"),
        ("float[B,M]", "Slice(x, first, k)"),
        ("float[C,D]", "Concat <axis = 0> (x, x)"),
        ("float[M,M]", "Gemm <transA = 1> (x, x)"),
        ("float[N,N]", "Gemm <transB = 1> (x, x)"),
    )
)
"""Operations over the rows of a matrix, however many there are."""
_BORDERS: dict[str, Array] = {
    "w": np.arange(54, dtype=np.float32).reshape(3, 2, 3, 3) % 7 - 3,
    "d": np.arange(18, dtype=np.float32).reshape(2, 1, 3, 3) % 5 - 2,
    "t": np.arange(54, dtype=np.float32).reshape(2, 3, 3, 3) % 7 - 3,
    "p": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
    "a": np.array([3], np.int64),
    "c": np.array(3, np.int64),
    "first": np.array([0], np.int64),
    "rows": np.array(0, np.int64),
    "k": np.array([2], np.int64),
}


_SPOILT = {1: np.inf, 4: -np.inf, 7: np.nan}
"""Runs of sizes ahead of which one of the largest is full of a number that no product forgets."""


@check("sharing", values=True)
def what_larger_runs_left_is_not_read(bench: Bench) -> None:
    """Windows, borders and rows of a small image hold nothing of a larger one, infinite or not."""
    models = ((text, _parsed(text, _BORDERS)) for text in (*_BORDERED, *_ROWED))
    for text, proto in bench.taken(models):
        sample = Sample("bordered", proto)
        request = bench.compile(proto).create_infer_request()
        sizes = ((9, 12), (9, 5), (4, 12), (3, 4), (3, 3), (9, 12), (8, 11), (5, 5))
        for turn, (n, m) in enumerate(sizes):
            if turn in _SPOILT:
                larger = sample.feeds(turn, N=9, M=12)
                with np.errstate(all="ignore"):
                    request.infer({x: np.full_like(a, _SPOILT[turn]) for x, a in larger.items()})
            feeds = {name: a + 10 for name, a in sample.feeds(turn, N=n, M=m).items()}
            what = f"{text.rpartition('{')[2]} of {n} x {m} in run {turn + 1}"
            compare(request.infer(feeds).to_tuple(), bench.expected(proto, feeds), what)


OF_EVERY_TYPE = (
    "g (float[2,3] x) => (int64[2,1] y) { y = ArgMax <axis = 1> (x) }",
    "g (float[2,3] x) => (bool[2,3] y) { y = Greater(x, x) }",
    "g (float[2,3] x) => (int64[2] y) { y = Shape(x) }",
    "g (float[2,3] x) => (float y) { y = ReduceMax <keepdims = 0> (x) }",
    "g (float[1] x) => (float[1] y) { y = Neg(x) }",
    "g (float x) => (float y) { y = Neg(x) }",
    "g (float[2,3,5] x) => (float[2,3,5] y) { y = Relu(x) }",
    "g (float[2,1,3,5] x) => (float[2,1,3,5] y) { y = Relu(x) }",
    "g (double[1,2,3,7] x) => (double[1,2,3,7] y) { y = Neg(x) }",
    "g (int8[1,2,3,7] x) => (int8[1,2,3,7] y) { y = Identity(x) }",
    "g (float[1,2,1,3,5,3] x) => (float[1,2,1,3,5,3] y) { y = Relu(x) }",
    "g (float[1,2,1,3,2] x) => (float[1,2,1,3,2] y) { y = Relu(x) }",
    "g (float[1,2,1,3,2,1,2] x) => (float[1,2,1,3,2,1,2] y) { y = Relu(x) }",
    "g (float[2,3] x) => (float[3,2] y) { y = Transpose(x) }",
    "g (float16[2,3] x) => (float16[2,3] y) { y = Relu(x) }",
    "g (double[2,3] x) => (double[2,3] y) { y = Relu(x) }",
    "g (int32[2,3] x) => (int32[2,3] y) { y = Add(x, x) }",
    "g (uint8[2,3] x) => (float[2,3] y) { y = Cast <to = 1> (x) }",
    "g (bool[2,3] x) => (bool[2,3] y) { y = Not(x) }",
)
"""Models with outputs of every type and rank."""


@check("sharing")
def outputs_are_plain_arrays(bench: Bench) -> None:
    """Outputs of every type and rank have their port's dtype and rank, in C order, as ndarrays."""
    for text in (*OF_EVERY_TYPE, *_FREE):
        proto = parse(text)
        if bench.refusals(proto):
            continue
        compiled = bench.compile(proto)
        runner = compiled.device_model.create_runner()
        for n, m in ((4, 6), (4, 3), (2, 6), (4, 6)) if text in _FREE else ((2, 3),):
            feeds = Sample("", proto).feeds(2, N=n, M=m, K=n)
            _require_plain(bench, proto, runner, feeds, f"The output of '{text.partition('{')[2]}'")
        runner.close()


def _require_plain(
    bench: Bench, proto: Any, runner: partita.Runner, feeds: dict[str, Array], what: str
) -> None:
    """Runs a runner, and looks at the arrays that it gives."""
    inputs = [partita.HostTensor(array) for array in feeds.values()]
    for tensor, due in zip(runner.run(inputs), bench.expected(proto, feeds), strict=True):
        array = tensor.numpy()
        require(type(array) is np.ndarray, f"{what} is a {type(array).__name__}.")
        require(tensor.dtype == array.dtype == due.dtype, f"{what} is of {array.dtype}.")
        require(array.dtype.isnative, f"{what} is not in this machine's byte order.")
        require(tuple(tensor.shape) == array.shape == due.shape, f"{what}: {array.shape}.")
        require(array.flags.c_contiguous, f"{what} is not C-contiguous.")
        require(array.flags.writeable, f"{what} cannot be written to.")
