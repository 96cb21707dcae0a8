"""Walks: drawn rows of steps with requests of a model, behind each of which everything is right.

What a runtime keeps is wrong for some order of things: this shape behind that one, a tensor that is
given behind one that was not, a failure between two runs. A walk draws the order, and looks behind
each step at all that was handed out or lent so far: results, inputs, and the bytes around them.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

import partita
from partita.contract.bound_call import BoundCall
from partita.errors import BoundCallEndedError, InferCancelledError, PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.inputs.models import Array
from partita_conformance.inputs.places import Place, contents
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import ConformanceError, require
from partita_conformance.suites.resources.meeting import on_a_thread

_SIZES = (3, 5, 2, 1, 0, 8, 17, 33)
_KEPT = 10
"""So many results are looked at behind each step."""


@dataclass
class _Result:
    """An array that was handed out, as it is to stay until its owner runs again."""

    array: Array
    owner: object
    what: str
    held: Any = field(init=False)

    def __post_init__(self) -> None:
        self.held = contents(self.array)


@dataclass
class _Bound:
    """A bound call, and what it reads and writes."""

    call: BoundCall
    feeds: dict[str, Place]
    outputs: list[Place]
    runner: partita.Runner


class Walk:
    """One walk.

    Args:
        bench: The device.
        name: What messages call the model.
        proto: The model; all its sizes that are symbols may be any.
        numbers: Makes elements of a type and shape, others for each number.
        seed: Which walk.
        impossible: Sizes for which the model cannot be computed, if there are any.
    """

    def __init__(
        self,
        bench: Bench,
        name: str,
        proto: onnx.ModelProto,
        numbers: Callable[[Any, tuple[int, ...], int], Array],
        seed: int,
        impossible: dict[str, int] | None = None,
    ) -> None:
        self._bench, self._name, self._proto, self._numbers = bench, name, proto, numbers
        self._random = random.Random(seed)  # noqa: S311  # the same walk each time
        self._impossible = impossible
        self._compiled = bench.compile(proto)
        model = self._compiled.device_model
        self._ports, self._runners = model.inputs, [model.create_runner() for _ in range(2)]
        self._requests = [self._compiled.create_infer_request() for _ in range(2)]
        self._places: dict[str, list[Place]] = {port.name: [] for port in self._ports}
        self._results: list[_Result] = []
        self._bound: list[_Bound] = []
        self._number = seed
        self._sizes: dict[str, int] = {}
        self._steps: dict[Callable[[], None], int] = {
            self._run: 8,
            self._infer: 6,
            self._start: 3,
            self._bind: 2,
            self._call: 4,
            self._fail: 2,
            self._refuse: 1,
            self._overwrite: 2,
            self._cancel_nothing: 1,
            self._leave: 2,
            self._compile: 1,
        }

    def go(self, steps: int) -> None:
        """Makes so many steps.

        Raises:
            ConformanceError: Something is wrong behind one; the message names the last ones.
        """
        story: list[str] = []
        kinds, weights = [*self._steps], [*self._steps.values()]
        for number in range(steps):
            step = self._random.choices(kinds, weights)[0]
            elsewhere = self._random.random() < 0.15
            story.append(step.__name__.strip("_") + (" on a thread" if elsewhere else ""))
            try:
                on_a_thread(step)() if elsewhere else step()
                self._look()
            except ConformanceError as error:
                last = ", ".join(story[-5:])
                raise ConformanceError(
                    f"{self._name}, step {number + 1} ({last}): {error}"
                ) from error
        for runner in self._runners:
            runner.close()

    def _look(self) -> None:
        """Looks at everything that nobody may have changed."""
        for name, places in self._places.items():
            for place in places:
                require(place.holds(), f"Input '{name}', or what lies beside it, was written to.")
        for result in self._results:
            same = contents(result.array) == result.held
            require(same, f"{result.what} has changed since.")
        for bound in self._bound:
            ok = all(place.holds() for place in bound.outputs)
            require(ok, "Outputs of a bound call that was not made were written to.")

    # ------------------------------------------------------------------------------- inputs

    def _shape(self, port: partita.Port, sizes: dict[str, int]) -> tuple[int, ...]:
        return tuple(d if isinstance(d, int) else sizes[str(d)] for d in port.shape or ())

    def _draw_sizes(self) -> dict[str, int]:
        """Other sizes than in the step before, or the same."""
        symbols = {str(d) for p in self._ports for d in p.shape or () if not isinstance(d, int)}
        if not self._sizes or self._random.random() < 0.5:
            self._sizes = {s: self._random.choice(_SIZES) for s in sorted(symbols)}
            if self._impossible:  # here they are to fit
                self._sizes = dict.fromkeys(self._sizes, self._random.choice(_SIZES))
        return self._sizes

    def _elements(self, dtype: Any, shape: tuple[int, ...]) -> Array:
        self._number += 1
        return self._numbers(dtype, shape, self._number)

    def _feeds(self, sizes: dict[str, int]) -> dict[str, Array]:
        """Inputs of any origin: new ones, those before, changed where they lie, or results."""
        feeds: dict[str, Array] = {}
        for port in self._ports:
            shape, dtype = self._shape(port, sizes), port.dtype
            others = [p for places in self._places.values() for p in places]
            alike = [p for p in others if (p.array.shape, p.array.dtype) == (shape, dtype)]
            made = [r for r in self._results if (r.array.shape, r.array.dtype) == (shape, dtype)]
            way = self._random.random()
            if alike and way < 0.5:
                place = self._random.choice(alike)
                if way < 0.35:
                    self._change(place)
                # Read-only by turns: such memory may change as well, through another array.
                feeds[port.name] = place.array if self._number % 3 else _read_only(place.array)
            elif made and way < 0.6:
                feeds[port.name] = self._random.choice(made).array
            else:
                place = Place(self._elements(dtype, shape), self._random.choice((0, 0, 1, 3)))
                self._places[port.name] = [*self._places[port.name][-2:], place]
                feeds[port.name] = place.array
                if self._random.random() < 0.2:
                    feeds[port.name] = _read_only(place.array)
        return feeds

    def _change(self, place: Place) -> None:
        """Gives an array other elements where it lies, or one of them."""
        flat = place.array.reshape(-1)
        fresh = self._elements(flat.dtype, flat.shape)
        if flat.size and self._random.random() < 0.6:
            index = self._random.randrange(flat.size)
            flat[index] = fresh[index]
        else:
            flat[...] = fresh
        place.hold()

    def _due(self, feeds: dict[str, Array]) -> list[Array]:
        return self._bench.expected(self._proto, {name: a.copy() for name, a in feeds.items()})

    def _tensors(self, feeds: dict[str, Array]) -> list[partita.Tensor]:
        return [partita.HostTensor(feeds[port.name]) for port in self._ports]

    def _target(self, due: Array) -> Place:
        """Where an output is to go, which holds something."""
        if due.dtype.hasobject or due.dtype == np.bool_:
            return Place(self._elements(due.dtype, due.shape), self._random.randrange(4))
        place = Place(np.zeros_like(due), self._random.randrange(16))
        place.array.reshape(-1).view(np.uint8)[...] = 0xFF
        place.hold()
        return place

    # ------------------------------------------------------------------------------- results

    def _forget(self, owner: object) -> None:
        """What somebody returned is valid until its next run."""
        self._results = [r for r in self._results if r.owner is not owner]

    def _take(
        self,
        arrays: Sequence[Array],
        feeds: dict[str, Array],
        owner: object,
        given: Sequence[Array] = (),
    ) -> None:
        """Looks at results, and keeps them in mind."""
        read = [*feeds.values(), *(r.array for r in self._results)]
        for index, array in enumerate(arrays):
            plain = type(array) is np.ndarray and array.flags.c_contiguous
            require(plain and array.flags.writeable, f"Output {index} is not a plain array.")
            shared = any(np.shares_memory(array, other) for other in read)
            require(not shared, f"Output {index} lies where something else does.")
            read.append(array)
            lasts = any(array is one for one in given)  # it is the caller's own
            what = f"Output {index} of an earlier run"
            self._results.append(_Result(array, None if lasts else owner, what))
        self._results = self._results[-_KEPT:]

    # --------------------------------------------------------------------------------- steps

    def _run(self) -> None:
        runner = self._random.choice(self._runners)
        feeds = self._feeds(self._draw_sizes())
        due = self._due(feeds)
        self._forget_unless_read(runner, feeds)
        given = [self._target(a) if self._random.random() < 0.6 else None for a in due]
        outputs = [None if p is None else partita.HostTensor(p.array) for p in given]
        results = runner.run(self._tensors(feeds), outputs if self._random.random() < 0.7 else None)
        arrays = [tensor.numpy() for tensor in results]
        compare(arrays, due, "a run of a runner")
        for index, place in enumerate(given):
            if place is not None:
                require(place.edges_hold(), f"A run writes beside output {index}.")
        self._take(arrays, feeds, runner, [p.array for p in given if p is not None])

    def _forget_unless_read(self, owner: object, feeds: dict[str, Array]) -> None:
        """Before an owner runs; results of its own that it reads are copied first."""
        mine = [r.array for r in self._results if r.owner is owner]
        for name, array in feeds.items():
            if any(array is one for one in mine):
                feeds[name] = array.copy()
        self._forget(owner)

    def _infer(self) -> None:
        request = self._random.choice(self._requests)
        feeds = self._feeds(self._draw_sizes())
        due = self._due(feeds)
        shared = self._random.random() < 0.5
        mine = [r.array for r in self._results if r.owner is request]  # the run overwrites these
        read = {n: a for n, a in feeds.items() if not any(a is one for one in mine)}
        self._forget(request)
        given: Any = feeds if self._random.random() < 0.7 else self._tensors(feeds)
        share_inputs = self._random.random() < 0.5
        result = request.infer(given, share_inputs=share_inputs, share_outputs=shared)
        compare(result.to_tuple(), due, "a run of a request")
        self._take(result.to_tuple(), read, request if shared else None)

    def _start(self) -> None:
        request = self._random.choice(self._requests)
        feeds = self._feeds(self._draw_sizes())
        due = self._due(feeds)
        self._forget_unless_read(request, feeds)
        request.start_async(feeds)
        if self._random.random() < 0.4:
            request.cancel()
        with contextlib.suppress(InferCancelledError):
            request.wait()
            compare(request.results.to_tuple(), due, "an asynchronous run")

    def _bind(self) -> None:
        runner = self._random.choice(self._runners)
        sizes = self._draw_sizes()
        feeds = {p.name: Place(self._elements(p.dtype, self._shape(p, sizes))) for p in self._ports}
        arrays = {name: place.array for name, place in feeds.items()}
        due = self._due(arrays)
        self._forget(runner)
        compare([t.numpy() for t in runner.run(self._tensors(arrays))], due, "a run to be bound")
        outputs = [self._target(array) for array in due]
        scratch = np.zeros(self._compiled.device_model.scratch_bytes, np.uint8)
        tensors = [partita.HostTensor(place.array) for place in outputs]
        call = runner.bind(self._tensors(arrays), tensors, scratch)
        if call is not None:
            self._bound = [*self._bound[-2:], _Bound(call, feeds, outputs, runner)]
            self._call()

    def _call(self) -> None:
        if not self._bound:
            return
        bound = self._bound[-1] if self._random.random() < 0.5 else self._random.choice(self._bound)
        for place in bound.feeds.values():
            if place.array.dtype.kind not in "iu" and self._random.random() < 0.7:
                self._change(place)
        due = self._due({name: place.array for name, place in bound.feeds.items()})
        self._forget(bound.runner)
        try:
            bound.call()
        except BoundCallEndedError:
            self._bound.remove(bound)
            return
        compare([place.array for place in bound.outputs], due, "a bound call")
        for place in bound.outputs:
            require(place.edges_hold(), "A bound call writes beside an output.")
            place.hold()

    def _fail(self) -> None:
        """Something that cannot be computed, if there is, by a runner or a request."""
        if self._impossible is None:
            return
        feeds = {
            p.name: self._elements(p.dtype, self._shape(p, self._impossible)) for p in self._ports
        }
        runner, request = self._random.choice(self._runners), self._random.choice(self._requests)
        self._forget(runner)
        self._forget(request)
        with contextlib.suppress(PartitaError):
            runner.run(self._tensors(feeds))
            require(False, "A run that cannot be computed raises nothing.")
        with contextlib.suppress(PartitaError):
            request.infer(feeds)
            require(False, "A run that cannot be computed raises nothing.")

    def _refuse(self) -> None:
        request = self._random.choice(self._requests)
        feeds = self._feeds(self._draw_sizes())
        self._forget(request)
        with contextlib.suppress(PartitaError):
            request.infer({name: array[None] for name, array in feeds.items()})
            require(False, "Inputs of another rank are taken.")

    def _overwrite(self) -> None:
        """Results are the caller's, to be written to."""
        for result in self._results:
            if self._random.random() < 0.5:
                result.array[...] = self._elements(result.array.dtype, result.array.shape)
                result.held = contents(result.array)

    def _cancel_nothing(self) -> None:
        self._random.choice(self._requests).cancel()
        self._random.choice(self._runners).cancel()

    def _leave(self) -> None:
        """A runner and a request go, and others come."""
        runner = self._runners.pop(0)
        self._forget(runner)
        self._bound = [bound for bound in self._bound if bound.runner is not runner]
        if self._random.random() < 0.6:
            runner.close()
        request = self._requests.pop(0)
        self._forget(request)
        del runner, request
        if self._random.random() < 0.5:
            gc.collect(0)
        self._runners.append(self._compiled.device_model.create_runner())
        self._requests.append(self._compiled.create_infer_request())

    def _compile(self) -> None:
        """The model is compiled anew, while runners and requests of the old one go on."""
        core = self._bench.new_core() if self._random.random() < 0.3 else None
        self._compiled = self._bench.compile(self._proto, core=core)
        self._leave()


def _read_only(array: Array) -> Array:
    """The same memory, through which nobody writes."""
    view = array.view()
    view.flags.writeable = False
    return view
