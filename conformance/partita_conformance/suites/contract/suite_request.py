"""Suite ``request``: inputs are only read, results are right however and how often one infers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import partita
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Sample, parse, samples
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.feeding import host_tensors

Array = np.ndarray[Any, Any]


def agree(bench: Bench, sample: Sample, feeds: dict[str, Array], have: Any, what: str) -> None:
    """Compares results, as a request or as arrays, with what is right for a sample's inputs."""
    values = have.to_tuple() if isinstance(have, partita.InferResult) else have
    compare(values, bench.expected(sample.proto, feeds), f"{sample.name}, {what}")


@check("request", values=True)
def infers(bench: Bench) -> None:
    """One inference gives the right numbers."""
    for kind in ("plain", "dynamic", "pair", "outputs"):
        sample = bench.sample(kind)
        feeds = sample.feeds()
        agree(bench, sample, feeds, bench.compile(sample.proto)(feeds), "one inference")


@check("request", values=True)
def infers_again(bench: Bench) -> None:
    """Nothing of one run is left in the next: other inputs, then the first ones again."""
    for kind in ("plain", "outputs"):
        sample = bench.sample(kind)
        request = bench.compile(sample.proto).create_infer_request()
        for turn, seed in enumerate((0, 1, 0, 2, 2)):
            feeds = sample.feeds(seed)
            agree(bench, sample, feeds, request.infer(feeds), f"run {turn + 1} of one request")


@check("request", values=True)
def every_output_may_be_given(bench: Bench) -> None:
    """Results lie in the caller's tensors, one for each output, in the first run and the next."""
    sample = bench.sample("outputs")
    request = bench.compile(sample.proto).create_infer_request()
    for seed in (1, 2):
        feeds = sample.feeds(seed)
        expected = bench.expected(sample.proto, feeds)
        given = [np.full_like(array, 55) for array in expected]
        for index, array in enumerate(given):
            request.set_output_tensor(index, partita.HostTensor(array))
        request.infer(feeds)
        compare(given, expected, f"{sample.name}, tensors given for its outputs")


@check("request", values=True)
def some_outputs_may_be_given(bench: Bench) -> None:
    """A runner writes to each tensor that it returns, whichever of the outputs have one given."""
    sample = bench.sample("outputs")
    compiled = bench.compile(sample.proto)
    runner = compiled.device_model.create_runner()
    for seed, mask in enumerate(itertools.product((False, True), repeat=len(compiled.outputs))):
        feeds = sample.feeds(seed)
        expected = bench.expected(sample.proto, feeds)
        given = [
            partita.HostTensor(np.full_like(array, 55)) if wanted else None
            for array, wanted in zip(expected, mask, strict=True)
        ]
        inputs = host_tensors(compiled, feeds)
        have = [tensor.numpy() for tensor in runner.run(inputs, given)]
        compare(have, expected, f"{sample.name}, outputs given: {list(mask)}")
    runner.close()


@check("request")
def inputs_are_only_read(bench: Bench) -> None:
    """Inputs are the same after a run as before, and may be read-only."""
    for kind in ("plain", "dynamic", "pair", "outputs"):
        sample = bench.sample(kind)
        feeds = sample.feeds(3)
        before = {name: array.copy() for name, array in feeds.items()}
        request = bench.compile(sample.proto).create_infer_request()
        request.infer(feeds)
        for name, array in feeds.items():
            require(np.array_equal(array, before[name]), f"A run writes to its input '{name}'.")
        for array in feeds.values():
            array.flags.writeable = False
        request.infer(feeds)


@check("request", values=True)
def inputs_are_not_kept(bench: Bench) -> None:
    """A result stays as it is when the input is overwritten; a new array is read anew."""
    sample = bench.sample("plain")
    request = bench.compile(sample.proto).create_infer_request()
    feeds = sample.feeds(4)
    expected = [array.copy() for array in bench.expected(sample.proto, feeds)]
    request.infer(feeds)
    results = request.results.to_tuple()
    for array in feeds.values():
        array[...] = 77
    compare(results, expected, f"{sample.name}, results after the input was overwritten")
    other = sample.feeds(5)
    agree(bench, sample, other, request.infer(other), "a new array in the same request")


@check("request", values=True)
def inputs_changed_in_place_are_read_anew(bench: Bench) -> None:
    """The same array with other numbers gives other results; nothing is cached by identity."""
    sample = bench.sample("plain")
    request = bench.compile(sample.proto).create_infer_request()
    feeds = sample.feeds(6)
    request.infer(feeds)
    for name, array in sample.feeds(7).items():
        feeds[name][...] = array
    fresh = {name: array.copy() for name, array in feeds.items()}
    agree(bench, sample, fresh, request.infer(feeds), "the same array with other numbers")
    for name, array in feeds.items():
        request.set_tensor(name, array)
    for name, array in sample.feeds(8).items():
        feeds[name][...] = array
    fresh = {name: array.copy() for name, array in feeds.items()}
    agree(bench, sample, fresh, request.infer(), "a set tensor changed in place")


@check("request", values=True)
def inputs_of_any_layout(bench: Bench) -> None:
    """Arrays with gaps, reversed, transposed or of the other byte order give the same results."""
    sample = bench.sample("plain")
    feeds = sample.feeds(9)
    request = bench.compile(sample.proto).create_infer_request()
    for name, array in feeds.items():
        wide = np.repeat(array, 2, axis=-1)[..., ::2]
        backward = np.flip(np.flip(array, 0).copy(), 0)
        fortran = np.asfortranarray(array)
        swapped = array.astype(array.dtype.newbyteorder())
        for what, form in {
            "with gaps": wide,
            "reversed": backward,
            "in Fortran order": fortran,
            "of the other byte order": swapped,
        }.items():
            agree(bench, sample, feeds, request.infer({**feeds, name: form}), f"input {what}")


@check("request", values=True)
def large_tensors_pass(bench: Bench) -> None:
    """An input and a result of more than sixteen mebibytes are tensors like any other."""
    text = "large (float[2053,2063] x) => (float[2053,2063] y) {{ y = {0}(x) }}"
    ops = ("Relu", "Neg", "Abs", "Identity", "Sigmoid")
    op, proto = next(bench.taken((op, parse(text.format(op))) for op in ops))
    sample = Sample(f"large {op}", proto)
    feeds = sample.feeds(14)
    agree(bench, sample, feeds, bench.compile(proto)(feeds), "a tensor of 16 MiB")


@check("request", values=True)
def one_array_for_two_inputs(bench: Bench) -> None:
    """The same array may be given for two inputs."""
    for sample in samples("pair"):
        array = sample.feeds(10)["a"]
        feeds = {"a": array, "b": array}
        if bench.refusals(sample.proto) or not np.any(bench.expected(sample.proto, feeds)[0]):
            continue  # x - x would be right by zeros
        result = bench.compile(sample.proto)(feeds)
        agree(bench, sample, feeds, result, "one array for both inputs")
        return
    raise NotApplicableError("the device takes none of the models of two inputs")


def _overlapping() -> dict[str, tuple[Array, Array]]:
    """Two inputs that lie in one block, by how."""
    block = np.arange(1, 13, dtype=np.float32)
    return {
        "of the same bytes in other shapes": (block.reshape(3, 4), block.reshape(4, 3)),
        "of which one begins the other": (block.reshape(3, 4), block[:4].reshape(4, 1)),
        "that overlap": (block[:8].reshape(2, 4), block[4:].reshape(4, 2)),
        "of which one ends the other": (block.reshape(3, 4), block[8:].reshape(4, 1)),
        "of the same bytes and one shape": (block[:9].reshape(3, 3), block[:9].reshape(3, 3)),
    }


@check("request", values=True)
def inputs_may_share_their_memory(bench: Bench) -> None:
    """Inputs that lie in the same bytes, or some of them, have each its own shape and elements."""
    texts = (
        "g (float[A,B] a, float[B,C] b) => (float[A,C] y) { y = MatMul(a, b) }",
        "g (float[A,B] a, float[B,C] b) => (float[A,B] y, float[B,C] z) { y = Neg(a) z = Abs(b) }",
    )
    for _, proto in bench.taken((text, parse(text)) for text in texts):
        compiled = bench.compile(proto)
        request, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
        for what, (a, b) in _overlapping().items():
            feeds = {"a": a, "b": b}
            due = bench.expected(proto, {name: array.copy() for name, array in feeds.items()})
            results = runner.run([partita.HostTensor(a), partita.HostTensor(b)])
            compare([tensor.numpy() for tensor in results], due, f"inputs {what}")
            for _ in range(3):
                have = request.infer(feeds, share_inputs=True).to_tuple()
                compare(have, due, f"inputs {what}, of a request")
        runner.close()


@check("request", values=True)
def inputs_keep_their_order(bench: Bench) -> None:
    """Inputs given by name in any order, by index or as a list go where they belong."""
    sample = bench.sample("pair")
    feeds = sample.feeds(11)
    compiled = bench.compile(sample.proto)
    backward = dict(reversed(feeds.items()))
    for what, given in {
        "by name, backward": backward,
        "by index": {1: feeds["b"], 0: feeds["a"]},
        "as a list": [feeds["a"], feeds["b"]],
    }.items():
        agree(bench, sample, feeds, compiled(given), f"inputs {what}")


@check("request", values=True)
def results_belong_to_their_request(bench: Bench) -> None:
    """Results not yet copied survive runs of other requests of the same model."""
    sample = bench.sample("outputs")
    compiled = bench.compile(sample.proto)
    requests = [compiled.create_infer_request() for _ in range(3)]
    inputs = [sample.feeds(20 + i) for i in range(3)]
    for request, feeds in zip(requests, inputs, strict=True):
        request.infer(feeds, share_outputs=True)
    for i, (request, feeds) in enumerate(zip(requests, inputs, strict=True)):
        agree(bench, sample, feeds, request.results, f"request {i} after others ran")


@check("request")
def tensors_are_what_they_say(bench: Bench) -> None:
    """Output tensors agree with their ports, and their arrays are C-contiguous."""
    for kind in ("plain", "dynamic", "outputs"):
        sample = bench.sample(kind)
        request = bench.compile(sample.proto).create_infer_request()
        request.infer(sample.feeds())
        for port, tensor in zip(
            request.compiled_model.outputs, request.output_tensors, strict=True
        ):
            array = tensor.numpy()
            what = f"Output '{port.name}' of '{sample.name}'"
            require(tensor.dtype == port.dtype == array.dtype, f"{what} is {tensor.dtype}.")
            require(tuple(tensor.shape) == array.shape, f"{what} says {tensor.shape}.")
            require(array.flags.c_contiguous, f"{what} is not C-contiguous.")
            require(len(array.shape) == len(port.shape or array.shape), f"{what}: {array.shape}.")
            for have, due in zip(array.shape, port.shape or array.shape, strict=True):
                require(not isinstance(due, int) or have == due, f"{what} has {array.shape}.")


@check("request", values=True)
def shapes_may_change(bench: Bench) -> None:
    """Rows come and go from run to run, down to none at all."""
    sample = bench.sample("dynamic")
    request = bench.compile(sample.proto).create_infer_request()
    for turn, rows in enumerate((3, 5, 3, 1, 8, 2, 0, 5)):
        feeds = sample.feeds(30 + turn, N=rows)
        agree(bench, sample, feeds, request.infer(feeds), f"{rows} rows in run {turn + 1}")


@check("request", values=True)
def more_rows_than_sixteen_bits_count(bench: Bench) -> None:
    """A request takes any number of rows, of which all are computed."""
    sample = bench.sample("dynamic")
    request = bench.compile(sample.proto).create_infer_request()
    for rows in (65_543, 3):
        feeds = sample.feeds(43, N=rows)
        agree(bench, sample, feeds, request.infer(feeds), f"{rows} rows")


@check("request", values=True)
def results_of_one_shape_do_not_change_with_another(bench: Bench) -> None:
    """A copied result is not touched by a later run of another shape."""
    sample = bench.sample("dynamic")
    compiled = bench.compile(sample.proto)
    small, large = sample.feeds(40, N=2), sample.feeds(41, N=6)
    first = compiled(small)
    compiled(large)
    compiled(sample.feeds(42, N=2))
    agree(bench, sample, small, first, "a result kept over later runs")


@check("request", values=True)
def given_outputs_are_written_or_declined(bench: Bench) -> None:
    """A runner that is given output tensors writes and returns them, or returns its own."""
    sample = bench.sample("outputs")
    compiled = bench.compile(sample.proto)
    runner = compiled.device_model.create_runner()
    for seed in (50, 51):
        feeds = sample.feeds(seed)
        expected = bench.expected(sample.proto, feeds)
        given = [partita.HostTensor(np.full_like(array, 9)) for array in expected]
        for offered in (given, [given[0], None], [None, None]):
            inputs = host_tensors(compiled, feeds)
            outputs = runner.run(inputs, offered)
            compare([t.numpy() for t in outputs], expected, f"{sample.name}, outputs given")
    runner.close()


@check("request", values=True)
def results_are_kept_apart_from_given_outputs(bench: Bench) -> None:
    """Output tensors given once are not written by a later run that is given none, or others."""
    sample = bench.sample("plain")
    compiled = bench.compile(sample.proto)
    runner = compiled.device_model.create_runner()
    feeds = sample.feeds(55)
    expected = bench.expected(sample.proto, feeds)
    given = [partita.HostTensor(np.zeros_like(array)) for array in expected]
    first = runner.run(host_tensors(compiled, feeds), given)
    kept = [tensor.numpy().copy() for tensor in given]
    later = sample.feeds(56)
    inputs = host_tensors(compiled, later)
    for others in (None, [partita.HostTensor(np.zeros_like(array)) for array in expected]):
        results = runner.run(inputs, others)
        compare([t.numpy() for t in results], bench.expected(sample.proto, later), sample.name)
        for before, tensor in zip(kept, given, strict=True):
            require(
                np.array_equal(before, tensor.numpy()),
                "A later run writes to output tensors given before.",
            )
    if all(a is b for a, b in zip(first, given, strict=True)):
        compare(kept, expected, f"{sample.name}, outputs given once")


@check("request", values=True)
def a_tensor_of_the_device_may_come_back(bench: Bench) -> None:
    """A tensor that transfer_to made is an input like any other."""
    sample = bench.sample("plain")
    feeds = sample.feeds(57)
    compiled = bench.compile(sample.proto)
    inputs = {
        name: bench.core.device_api.transfer_to(bench.device, partita.HostTensor(array))
        for name, array in feeds.items()
    }
    request = compiled.create_infer_request()
    for _ in range(2):
        agree(bench, sample, feeds, request.infer(inputs), "tensors of the device as inputs")


@check("request", values=True)
def special_numbers_pass(bench: Bench) -> None:
    """NaN, infinities and the largest numbers come out as IEEE arithmetic has them."""
    x = np.array([[np.nan, np.inf, -np.inf, 3.4e38, -0.0, 1e-40]], np.float32)
    bodies = ("y = Add(x, x)", "y = Relu(x)", "y = Neg(x)", "y = Mul(x, x)", "y = Abs(x)")
    text = "special (float[1,6] x) => (float[1,6] y) {{ {0} }}"
    for body, proto in bench.taken((body, parse(text.format(body))) for body in bodies):
        (have,) = bench.compile(proto)({"x": x}).to_tuple()
        (want,) = bench.expected(proto, {"x": x})
        compare([have[:, :5]], [want[:, :5]], f"{body} of {x[:, :5].tolist()}")
        close = np.abs(have[0, 5] - want[0, 5]) <= 1.2e-38  # denormals may be flushed to zero
        require(close, f"{body} of 1e-40 gives {have[0, 5]}.")


@check("request", values=True)
def outputs_may_coincide(bench: Bench) -> None:
    """An input as output, a constant as output and a value read twice keep their own numbers."""
    texts = {
        "a value read twice": "g (float[4] x) => (float[4] y, float[4] z, float[4] w) {"
        " y = Add(x, x) z = Neg(y) w = Add(z, y) }",
        "one operation twice": "g (float[4] x) => (float[4] y, float[4] z) {"
        " y = Neg(x) z = Neg(x) }",
    }
    for what, proto in bench.taken((what, parse(text)) for what, text in texts.items()):
        feeds = Sample(what, proto).feeds(60)
        compiled = bench.compile(proto)
        result = compiled(feeds, share_outputs=True)
        compare(result.to_tuple(), bench.expected(proto, feeds), what)
        arrays = result.to_tuple()
        for i, first in enumerate(arrays):
            for second in arrays[i + 1 :]:
                require(not np.shares_memory(first, second), f"{what}: two outputs share memory.")
