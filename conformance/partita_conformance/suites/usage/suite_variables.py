"""Further checks of suite ``state``: what a model keeps from run to run, of each request alone."""

from __future__ import annotations

import numpy as np
import onnx

from partita.errors import PartitaError
from partita.model.variables import METADATA_KEY, Variable, to_metadata
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require

_SUMS = {
    "Add": "present = Add(past, x) y = Neg(present)",
    "Mul and Add": "a = Mul(past, half) present = Add(a, x) y = Abs(present)",
    "Max": "present = Max(past, x) y = Add(present, x)",
    "Identity": "present = Identity(x) y = Add(past, x)",
}


def _models(bench: Bench) -> list[tuple[str, onnx.ModelProto]]:
    """Models of a variable that the device takes, by what becomes of it.

    Raises:
        NotApplicableError: None of them.
    """
    found = []
    for name, steps in _SUMS.items():
        weights = {"half": np.array(0.5, np.float32)} if "half" in steps else None
        text = "g (float[2,3] x, float[2,3] past) => (float[2,3] y, float[2,3] present)"
        proto = parse(f"{text} {{ {steps} }}", weights)
        if not bench.refusals(proto):
            entry = proto.metadata_props.add()
            entry.key, entry.value = METADATA_KEY, to_metadata([Variable("v", "past", "present")])
            found.append((name, proto))
    if not found:
        raise NotApplicableError("the device takes none of the models")
    return found


class _Judge:
    """The right answers of one request's runs."""

    def __init__(self, bench: Bench, proto: onnx.ModelProto) -> None:
        self._bench, self._proto = bench, proto
        self.past = np.zeros((2, 3), np.float32)

    def due(self, x: Array) -> Array:
        """The first output of the next run."""
        y, present = self._bench.expected(self._proto, {"x": x, "past": self.past})
        self.past = present
        return y


def _x(turn: int) -> Array:
    return np.asarray(np.random.default_rng(turn).standard_normal((2, 3)), np.float32)


@check("state", values=True)
def variables_are_of_one_request(bench: Bench) -> None:
    """Variables go on from run to run, apart for each request, and begin anew where they are reset.

    Runs that are refused or were given something else leave them.
    """
    for name, proto in _models(bench):
        compiled = bench.compile(proto)
        requests = [compiled.create_infer_request() for _ in range(2)]
        requests.append(bench.compile(proto).create_infer_request())
        judges = [_Judge(bench, proto) for _ in requests]
        for turn, which in enumerate((0, 0, 1, 0, 2, 1, 1, 0, 2, 0, 1)):
            what = f"{name} of a variable, request {which + 1} in turn {turn + 1}"
            if turn in (5, 7):
                requests[which].reset_state()
                judges[which].past = np.zeros((2, 3), np.float32)
            x = _x(turn)
            have = requests[which].infer({"x": x}).to_tuple()[0]
            compare([have], [judges[which].due(x)], what)
            for number, (request, judge) in enumerate(zip(requests, judges, strict=True)):
                (state,) = request.query_state()
                kept = state.state.numpy() if number == which else judge.past
                compare([kept], [judge.past], f"{what}: what request {number + 1} keeps")
            if turn == 3:
                try:
                    requests[which].infer({"x": np.zeros((5, 7), np.float32)})
                except PartitaError:
                    continue
                require(False, f"{what}: an input of another shape is taken.")


@check("state", values=True)
def variables_can_be_set(bench: Bench) -> None:
    """What a variable is set to counts in the next run, whatever was kept before."""
    for name, proto in _models(bench):
        request, judge = bench.compile(proto).create_infer_request(), _Judge(bench, proto)
        for turn in range(4):
            x = _x(turn)
            if turn % 2:
                given = _x(40 + turn)
                (state,) = request.query_state()
                state.state = given.copy()
                judge.past = given
            have = request.infer({"x": x}).to_tuple()[0]
            compare([have], [judge.due(x)], f"{name} of a variable that is set, run {turn + 1}")
