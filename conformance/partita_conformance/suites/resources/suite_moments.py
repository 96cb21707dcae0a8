"""Further checks of suites ``threads`` and ``async``: what may happen at any line of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

import partita
from partita.errors import InferCancelledError, PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, parse, stranger
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.feeding import host_tensors, sums_of_any_sizes
from partita_conformance.suites.resources.meeting import at_each_moment, packages_of

_FEW = 5
"""Lines per module at which what takes long is stopped, as a compile."""


def _packages(bench: Bench, compiled: partita.CompiledModel) -> frozenset[str]:
    """Where the device's own code is."""
    device_model = compiled.device_model
    runner = device_model.create_runner()
    try:
        return packages_of(bench.plugin, device_model, runner)
    finally:
        runner.close()


class _User:
    """Who runs a model on inputs of its own, and compares what comes out.

    Args:
        bench: The device.
        sample: The model.
        compiled: It, on the device.
        number: Which user: each has other inputs.
        sizes: Those of symbolic dimensions.
    """

    def __init__(
        self,
        bench: Bench,
        sample: Sample,
        compiled: partita.CompiledModel,
        number: int,
        **sizes: int,
    ) -> None:
        feeds = sample.feeds(400 + number, **sizes)
        self._due = bench.expected(sample.proto, feeds)
        self._feeds, self._inputs = feeds, host_tensors(compiled, feeds)
        self._what = f"{sample.name}, a run beside others (user {number + 1})"
        self.runner = compiled.device_model.create_runner()
        self._request = compiled.create_infer_request()

    def read(self, other: _User) -> None:
        """Reads the arrays of another user, which has the same numbers, from now on."""
        self._inputs = other._inputs

    def run(self) -> None:
        """Runs a runner, whose results are its own."""
        self._compare(self.runner.run(self._inputs))

    def run_into(self) -> None:
        """Runs a runner that is given tensors for its outputs."""
        given = [partita.HostTensor(np.full_like(array, 9)) for array in self._due]
        self._compare(self.runner.run(self._inputs, given))

    def infer(self) -> None:
        """Runs a request."""
        compare(self._request.infer(self._feeds).to_tuple(), self._due, self._what)

    def _compare(self, results: Sequence[Any]) -> None:
        compare([tensor.numpy() for tensor in results], self._due, self._what)


@check("threads", values=True)
def runs_meet_at_any_moment(bench: Bench) -> None:
    """At each line of one run another request's is made whole: neither has numbers of the other.

    Small and large, of one shape and of two, into tensors that are given and into its own.
    """
    for kind in ("pair", "dynamic", "outputs", "large"):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto)
        packages = _packages(bench, compiled)
        rows = ({"N": 5}, {"N": 3}) if kind == "dynamic" else ({}, {})
        one, other = (_User(bench, sample, compiled, n, **rows[n]) for n in range(2))
        at_each_moment(one.run, other.run, packages)
        at_each_moment(one.run_into, other.run_into, packages)
        at_each_moment(other.infer, one.infer, packages, _FEW)
        for user in (one, other):
            user.run()
            user.infer()


@check("threads", values=True)
def runs_meet_on_one_input(bench: Bench) -> None:
    """At each line of a run that reads an array another request reads the same one."""
    for kind in ("pair", "large"):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto)
        users = [_User(bench, sample, compiled, 0) for _ in range(2)]
        users[1].read(users[0])
        at_each_moment(users[0].run, users[1].run, _packages(bench, compiled))


@check("threads", values=True)
def first_runs_meet_at_any_moment(bench: Bench) -> None:
    """At each line of a model's first request and its run, another one is made and runs whole."""
    sample = bench.sample("plain")
    packages = _packages(bench, bench.compile(sample.proto))
    made: list[partita.CompiledModel] = []

    def first() -> None:
        made[:] = [bench.compile(sample.proto)]
        _User(bench, sample, made[0], 0).run()

    def meanwhile() -> None:
        for fresh in made:
            _User(bench, sample, fresh, 1).run()

    at_each_moment(first, meanwhile, packages, _FEW * 2)


@check("threads", values=True)
def models_are_made_at_any_moment(bench: Bench) -> None:
    """At each line of a compile, or of a question, another model's is made whole."""
    texts = {
        "a product": ("y = MatMul(x, w)", "float[4,4]"),
        "a sum": ("y = Add(x, w)", "float[4,4]"),
        "a difference": ("a = Neg(w) y = Add(x, a)", "float[4,4]"),
        "a sign": ("y = Neg(x)", "float[4,4]"),
        "a magnitude": ("y = Abs(x)", "float[4,4]"),
    }
    made = []
    for number, (what, (steps, kind)) in enumerate(texts.items()):
        weight = {"w": np.full((4, 4), 1.5 + number, np.float32)} if "w" in steps else None
        made.append((what, parse(f"g ({kind} x) => ({kind} y) {{ {steps} }}", weight)))
    taken = [proto for _, proto in bench.taken(made)]
    one, other = taken[0], taken[-1]
    packages = _packages(bench, bench.compile(one))
    feeds = Sample("", one).feeds(7)
    dues = [bench.expected(proto, feeds) for proto in (one, other)]

    def use(proto: onnx.ModelProto, due: Sequence[Array]) -> None:
        model = bench.read(proto)
        answer = bench.core.query_model(model, bench.device, bench.target.config)
        taken = len(answer) == len(model.ops)
        require(taken, "What was taken is refused while another model is queried.")
        compare(bench.compile(proto)(feeds).to_tuple(), due, "a model compiled beside another one")

    at_each_moment(lambda: use(one, dues[0]), lambda: use(other, dues[1]), packages, _FEW)


@check("threads", values=True)
def anything_may_happen_at_any_moment(bench: Bench) -> None:
    """A run goes on rightly whatever else is done at its lines: to requests, models, the device.

    Requests come, fail, are cancelled and go, models too; properties and counters are read.
    """
    sample = bench.sample("plain")
    compiled = bench.compile(sample.proto, {"PERF_COUNT": True})
    packages = _packages(bench, compiled)
    user = _User(bench, sample, compiled, 0)
    for use in _interruptions(bench, sample, compiled).values():
        at_each_moment(user.run, use, packages, _FEW)
        user.infer()


def _interruptions(
    bench: Bench, sample: Sample, compiled: partita.CompiledModel
) -> dict[str, Callable[[], None]]:
    """What is done while a model runs; none of it raises."""
    feeds = sample.feeds(8)
    other = compiled.create_infer_request()
    other.infer(feeds)

    def leave() -> None:
        request, runner = compiled.create_infer_request(), compiled.device_model.create_runner()
        request.infer(feeds)
        runner.close()
        runner.close()  # what is closed may be closed
        del request, runner

    def unused() -> None:
        compiled.create_infer_request()
        compiled.device_model.create_runner().close()

    def fail() -> None:
        with contextlib.suppress(PartitaError):
            other.infer({name: array[..., None] for name, array in feeds.items()})

    def refuse() -> None:
        with contextlib.suppress(Exception):  # of which type, suite faults checks
            bench.plugin.compile_model(stranger(), bench.properties())

    def cancel() -> None:
        other.start_async(feeds)
        other.cancel()
        with contextlib.suppress(PartitaError):
            other.wait()

    def tell() -> None:
        list(other.get_profiling_info())
        for name in compiled.get_property("SUPPORTED_PROPERTIES"):
            compiled.get_property(name)
        bench.core.device_info(bench.device)

    def forget() -> None:
        bench.compile(sample.proto)(feeds)
        bench.compile(sample.proto, core=bench.new_core())(feeds)

    def export() -> None:
        with contextlib.suppress(PartitaError, NotImplementedError):
            bench.core.import_model(compiled.export_model(), bench.device)

    return {
        "requests that come and go": leave,
        "requests that never run": unused,
        "runs that fail": fail,
        "models that are refused": refuse,
        "runs that are cancelled": cancel,
        "questions": tell,
        "models and cores that come and go": forget,
        "exports and imports": export,
    }


@check("threads", values=True)
def failures_meet_at_any_moment(bench: Bench) -> None:
    """At each line of a run that cannot be computed, another's is made whole, and the reverse."""
    proto = sums_of_any_sizes(bench)
    compiled = bench.compile(proto)
    packages = _packages(bench, compiled)
    user = _User(bench, Sample("Add", proto), compiled, 0, N=4, M=4)
    failing = compiled.device_model.create_runner()
    bad = [partita.HostTensor(np.ones(count, np.float32)) for count in (3, 4)]

    def fail() -> None:
        try:
            failing.run(bad)
        except PartitaError:
            return
        require(False, "A run of sizes that do not fit raises nothing beside another one.")

    at_each_moment(fail, user.run, packages)
    at_each_moment(user.run, fail, packages)
    user.infer()


@check("threads", values=True)
def bound_calls_meet_at_any_moment(bench: Bench) -> None:
    """At each line of a bound call another one, or a run, of the model is made whole."""
    sample = bench.sample("pair")
    compiled = bench.compile(sample.proto)
    device_model = compiled.device_model
    packages = _packages(bench, compiled)
    users = [_User(bench, sample, compiled, number) for number in range(2)]
    calls = []
    for number in range(2):
        feeds = sample.feeds(420 + number)
        due = bench.expected(sample.proto, feeds)
        runner = device_model.create_runner()
        inputs = host_tensors(compiled, feeds)
        runner.run(inputs)
        outputs = [partita.HostTensor(np.zeros_like(array)) for array in due]
        call = runner.bind(inputs, outputs, np.zeros(device_model.scratch_bytes, np.uint8))
        if call is None:
            raise NotApplicableError("the device binds no call")
        calls.append((call, outputs, due, runner))

    def make(number: int) -> None:
        call, outputs, due, _ = calls[number]
        for tensor in outputs:
            tensor.numpy()[...] = 9
        call()
        what = f"{sample.name}, a bound call beside others"
        compare([tensor.numpy() for tensor in outputs], due, what)

    at_each_moment(lambda: make(0), lambda: make(1), packages)
    at_each_moment(lambda: make(0), users[0].run, packages, _FEW)
    at_each_moment(users[1].run, lambda: make(1), packages, _FEW)


@check("threads")
def transfers_meet_at_any_moment(bench: Bench) -> None:
    """At each line of a transfer another one is made whole."""
    packages = _packages(bench, bench.compile(bench.sample("plain").proto))

    def move(number: int) -> None:
        array = np.full((3, 5), number, np.float32)
        tensor = bench.plugin.transfer_to(partita.HostTensor(array.copy()), bench.device_id)
        compare([tensor.numpy()], [array], "a tensor brought to the device beside another one")

    at_each_moment(lambda: move(1), lambda: move(2), packages)


@check("async", values=True)
def a_run_may_be_cancelled_at_any_moment(bench: Bench) -> None:
    """Cancelled at whichever line, a run raises or is right; others, and the next, are right."""
    for kind, sizes in (("outputs", {}), ("dynamic", {"N": 4})):
        sample = bench.sample(kind)
        compiled = bench.compile(sample.proto)
        packages = _packages(bench, compiled)
        one, other = (_User(bench, sample, compiled, number, **sizes) for number in range(2))

        def run(one: _User = one) -> None:
            with contextlib.suppress(InferCancelledError):
                one.run()

        at_each_moment(run, one.runner.cancel, packages, afterwards=one.run)
        at_each_moment(other.run, one.runner.cancel, packages, afterwards=one.run)
