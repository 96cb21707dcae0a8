"""Small models of branches, loops and scans, and of the sequences that go through them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from partita_conformance.inputs.models import Array, Sample, parse

_X, _Y = "float[2,3] x", "float[2,3] y"

_BRANCHES: Mapping[str, str] = {
    "branches of other sizes": f"{_X}, bool t => float[A,3] y:"
    " y = If (t) <then_branch = p () => (float[1,3] b) { b = ReduceSum <keepdims = 1> (x, zero) },"
    " else_branch = q () => (float[2,3] c) { c = Neg(x) }>",
    "branches of other ranks": f"{_X}, bool t => float[] y:"
    " y = If (t) <then_branch = p () => (float b) { b = ReduceMax <keepdims = 0> (x) },"
    " else_branch = q () => (float[3,2] c) { c = Transpose(x) }>",
    "branches of which one has no elements": f"{_X}, bool t => float[A,3] y:"
    " y = If (t) <then_branch = p () => (float[0,3] b) { b = Slice(x, zero, zero) },"
    " else_branch = q () => (float[2,3] c) { c = Neg(x) }>",
    "branches with weights of one name": f"{_X}, bool t => {_Y}:"
    " y = If (t) <then_branch = p () => (float[2,3] b) <float c = {2.5}> { b = Mul(x, c) },"
    " else_branch = q () => (float[2,3] d) <float c = {-7.0}> { d = Mul(x, c) }>",
    "branches with values of one name": f"{_X}, bool t => {_Y}:"
    " y = If (t) <then_branch = p () => (float[2,3] b) { a = Neg(x) b = Exp(a) },"
    " else_branch = q () => (float[2,3] b) { a = Abs(x) b = Exp(a) }>",
    "branches that end alike": f"{_X}, bool t => {_Y}:"
    " y = If (t) <then_branch = p () => (float[2,3] b) { a = Neg(x) b = Add(a, x) },"
    " else_branch = q () => (float[2,3] d) { c = Mul(x, x) d = Add(c, x) }>",
    "branches that begin alike": f"{_X}, bool t => {_Y}:"
    " y = If (t) <then_branch = p () => (float[2,3] b) { a = Neg(x) b = Add(a, x) },"
    " else_branch = q () => (float[2,3] d) { c = Neg(x) d = Mul(c, x) }>",
    "branches that exchange two values": f"{_X}, bool t => {_Y}, float[2,3] z:"
    " y, z = If (t) <then_branch = p () => (float[2,3] a, float[2,3] b)"
    " { a = Neg(x) b = Abs(x) }, else_branch = q () => (float[2,3] b, float[2,3] a)"
    " { a = Neg(x) b = Abs(x) }>",
    "a branch that would fail if it were taken": f"{_X}, int64[1] i, bool t => float[A,3] y:"
    " m = Where(t, one, eight)"
    " y = If (t) <then_branch = p () => (float[A,3] b) { b = Gather(x, m) },"
    " else_branch = q () => (float[A,3] c) { c = Neg(x) }>",
    "branches of branches": f"{_X}, bool t, bool u => {_Y}:"
    " y = If (t) <then_branch = p () => (float[2,3] b) { a = Exp(x) b = If (u) <"
    " then_branch = r () => (float[2,3] e) { e = Neg(a) },"
    " else_branch = s () => (float[2,3] f) { f = Add(a, x) }> },"
    " else_branch = q () => (float[2,3] c) { g = Not(u) c = If (g) <"
    " then_branch = r () => (float[2,3] e) { e = Abs(x) },"
    " else_branch = s () => (float[2,3] f) { f = Mul(x, x) }> }>",
    "two choices by one condition": f"{_X}, bool t => {_Y}, float[2,3] z:"
    " y = If (t) <then_branch = p () => (float[2,3] b) { b = Neg(x) },"
    " else_branch = q () => (float[2,3] c) { c = Abs(x) }>"
    " z = If (t) <then_branch = p () => (float[2,3] b) { b = Abs(y) },"
    " else_branch = q () => (float[2,3] c) { c = Neg(y) }>",
    "a choice by what is computed": f"{_X} => {_Y}:"
    " s = ReduceSum <keepdims = 0> (x) t = Greater(s, none)"
    " y = If (t) <then_branch = p () => (float[2,3] b) { b = Neg(x) },"
    " else_branch = q () => (float[2,3] c) { c = Mul(x, x) }>",
    "a branch that reads what was made long before": f"{_X}, bool t => {_Y}:"
    " a = Neg(x) b = Abs(a) c = Exp(b) d = Mul(c, c)"
    " y = If (t) <then_branch = p () => (float[2,3] e) { e = Add(d, a) },"
    " else_branch = q () => (float[2,3] f) { f = Mul(d, a) }>",
    "a choice that is known": f"{_X} => {_Y}, float[2,3] z:"
    " y = If (truth) <then_branch = p () => (float[2,3] b) { b = Neg(x) },"
    " else_branch = q () => (float[2,3] c) { c = Mul(x, x) }>"
    " f = Not(truth) z = If (f) <then_branch = p () => (float[2,3] b) { b = Neg(x) },"
    " else_branch = q () => (float[2,3] c) { c = Mul(x, x) }>",
    "choices that are known with weights of one name": f"{_X} => {_Y}, float[2,3] z:"
    " y = If (truth) <then_branch = p () => (float[2,3] b) <float c = {2.5}> { b = Mul(x, c) },"
    " else_branch = q () => (float[2,3] d) { d = Neg(x) }>"
    " z = If (truth) <then_branch = p () => (float[2,3] b) <float c = {-7.0}> { b = Add(x, c) },"
    " else_branch = q () => (float[2,3] d) { d = Neg(x) }>",
    "a branch that hands on": f"{_X}, bool t => {_Y}, float[2,3] z:"
    " a = Exp(x) y = If (t) <then_branch = p () => (float[2,3] b) { b = Identity(a) },"
    " else_branch = q () => (float[2,3] c) { c = Identity(x) }> z = Neg(a)",
}
_S3, _U3 = "float[3] s", "float[3] u"
_LOOP = "<body = r (int64 n, bool c, "
_LOOPS: Mapping[str, str] = {
    "a loop whose values change places": "float[3] x, float[3] z, int64 k =>"
    " float[3] y, float[3] w: y, w = Loop (k, truth, x, z)"
    f" {_LOOP}{_S3}, float[3] t) => (bool d, float[3] t2, float[3] s2)"
    " { d = Identity(c) t2 = Identity(t) s2 = Identity(s) }>",
    "a loop whose three values go round": "float[3] x, float[3] z, int64 k =>"
    " float[3] y, float[3] w, float[3] v: a = Neg(x) y, w, v = Loop (k, truth, x, z, a)"
    f" {_LOOP}{_S3}, float[3] t, {_U3}) => (bool d, float[3] t2, float[3] u2, float[3] s2)"
    " { d = Identity(c) t2 = Add(t, s) u2 = Identity(u) s2 = Identity(s) }>",
    "a loop whose first value its body reads too": "float[3] x, int64 k => float[3] y:"
    f" a = Identity(x) y = Loop (k, truth, a) {_LOOP}{_S3}) => (bool d, float[3] t)"
    " { d = Identity(c) t = Sub(s, a) }>",
    "a loop that reads a value behind its change": "float[3] x, float[3] z, int64 k =>"
    " float[3] y, float[3] w: y, w = Loop (k, truth, x, z)"
    f" {_LOOP}{_S3}, float[3] t) => (bool d, float[3] s2, float[3] t2)"
    " { d = Identity(c) s2 = Add(s, t) t2 = Sub(s, t) }>",
    "a loop whose value grows": "float[3] x, int64 k => float[A] y:"
    " y = Loop (k, truth, x)"
    f" {_LOOP}float[A] s) => (bool d, float[B] t)"
    " { d = Identity(c) t = Concat <axis = 0> (s, x) }>",
    "a loop whose value grows and is collected": "float[3] x, int64 k =>"
    " float[A] y, float[B] z: y, z = Loop (k, truth, x)"
    f" {_LOOP}float[A] s) => (bool d, float[B] t, float m)"
    " { d = Identity(c) t = Concat <axis = 0> (s, s) m = ReduceSum <keepdims = 0> (s) }>",
    "a loop whose value changes its rank": "float[3] x, int64 k => float[] y:"
    f" y = Loop (k, truth, x) {_LOOP}float[] s) => (bool d, float[] t)"
    " { d = Identity(c) t = Unsqueeze(s, zero) }>",
    "a loop whose value shrinks": "float[7] x, int64 k => float[A] y:"
    f" y = Loop (k, truth, x) {_LOOP}float[A] s) => (bool d, float[B] t)"
    " { d = Identity(c) t = Slice(s, one, eight) }>",
    "a loop that is left early": "float[3] x, int64 k => float[3] y, float[K,3] z:"
    f" y, z = Loop (nine, truth, x) {_LOOP}{_S3}) => (bool d, float[3] t, float[3] v)"
    " { d = Less(n, k) t = Add(s, x) v = Neg(t) }>",
    "a loop without a count": "float[3] x, int64 k => float[3] y, float[K,3] z:"
    f" y, z = Loop ('', truth, x) {_LOOP}{_S3}) => (bool d, float[3] t, float[3] v)"
    " { d = Less(n, k) t = Add(s, x) v = Neg(s) }>",
    "a loop without a condition": "float[3] x, int64 k => float[3] y, float[K,3] z:"
    f" y, z = Loop (k, '', x) {_LOOP}{_S3}) => (bool d, float[3] t, float[3] v)"
    " { d = Identity(c) t = Add(s, x) v = Neg(s) }>",
    "a loop that does not begin": "float[3] x, bool u, int64 k => float[3] y, float[K,3] z:"
    f" y, z = Loop (k, u, x) {_LOOP}{_S3}) => (bool d, float[3] t, float[3] v)"
    " { d = Identity(c) t = Add(s, x) v = Neg(s) }>",
    "a loop that counts": "float[3] x, int64 k => float[3] y, int64[K] z, float[L,3] w:"
    f" y, z, w = Loop (k, truth, x) {_LOOP}{_S3})"
    " => (bool d, float[3] t, int64 m, float[3] v)"
    " { d = Identity(c) t = Add(s, x) m = Mul(n, n) f = Cast <to = 1> (n) v = Mul(s, f) }>",
    "a loop with weights of its own": "float[3] x, int64 k => float[3] y, float[3] w:"
    f" y = Loop (k, truth, x) {_LOOP}{_S3}) => (bool d, float[3] t)"
    " <float[3] h = {0.5, -2.0, 3.0}> { d = Identity(c) t = Mul(s, h) }>"
    f" w = Loop (k, truth, x) {_LOOP}{_S3}) => (bool d, float[3] t)"
    " <float[3] h = {3.0, 0.5, -1.0}> { d = Identity(c) t = Mul(s, h) }>",
    "a loop in a loop": "float[3] x, int64 k => float[3] y, float[K,3] z:"
    f" y, z = Loop (k, truth, x) {_LOOP}{_S3}) => (bool d, float[3] t, float[3] v)"
    " { d = Identity(c) v = Neg(s)"
    " t = Loop (n, c, s) <body = q (int64 m, bool e, float[3] p) => (bool f, float[3] g)"
    " { f = Identity(e) g = Add(p, x) }> }>",
    "a loop that reads what the loop around it changes": "float[3] x, int64 k => float[3] y:"
    f" y = Loop (k, truth, x) {_LOOP}{_S3}) => (bool d, float[3] t)"
    " { d = Identity(c) i = Mul(s, x) j = Neg(i)"
    " t = Loop (two0, c, j) <body = q (int64 m, bool e, float[3] p) => (bool f, float[3] g)"
    " { f = Identity(e) h = Sub(p, s) g = Add(h, i) }> }>",
    "a choice in a loop": "float[3] x, int64 k => float[3] y:"
    f" y = Loop (k, truth, x) {_LOOP}{_S3}) => (bool d, float[3] t)"
    " { d = Identity(c) e = Less(n, two0) t = If (e) <"
    " then_branch = p () => (float[3] b) { b = Add(s, x) },"
    " else_branch = q () => (float[3] b) { b = Mul(s, x) }> }>",
    "a loop in a branch": "float[3] x, int64 k, bool t => float[3] y:"
    " y = If (t) <then_branch = p () => (float[3] b) {"
    f" b = Loop (k, t, x) {_LOOP}{_S3}) => (bool d, float[3] e)"
    " { d = Identity(c) e = Add(s, x) }> },"
    " else_branch = q () => (float[3] b) { b = Neg(x) }>",
    "a loop that changes nothing": "float[3] x, int64 k => float[3] y, float[K,3] z:"
    f" y, z = Loop (k, truth, x) {_LOOP}{_S3}) => (bool d, float[3] t, float[3] v)"
    " { d = Identity(c) t = Identity(s) v = Identity(x) }>",
    "a loop that fills a sequence": "float[3] x, int64 k => float[A] y:"
    f" e = SequenceEmpty() q = Loop (k, truth, e) {_LOOP}seq(float[3]) s)"
    " => (bool d, seq(float[3]) t) { d = Identity(c) f = Cast <to = 1> (n) v = Mul(x, f)"
    " t = SequenceInsert(s, v) }> p = SequenceInsert(q, x)"
    " y = ConcatFromSequence <axis = 0> (p)",
}
_SCANS: Mapping[str, str] = {
    "a scan of two values that change places": "float[3] x, float[3] z, float[4,3] i =>"
    " float[3] y, float[3] w, float[4,3] o: y, w, o = Scan <num_scan_inputs = 1, body = r ("
    f"{_S3}, float[3] t, float[3] e) => (float[3] t2, float[3] s2, float[3] v)"
    " { t2 = Add(t, e) s2 = Identity(s) v = Sub(s, e) }> (x, z, i)",
    "a scan from the end along columns": "float[3] x, float[3,5] i, float[5,3] j =>"
    " float[3] y, float[3,5] o: y, o = Scan <num_scan_inputs = 2,"
    " scan_input_axes = [1, 0], scan_input_directions = [1, 0], scan_output_axes = [1],"
    f" scan_output_directions = [1], body = r ({_S3}, float[3] e, float[3] f)"
    " => (float[3] t, float[3] v) { t = Add(s, e) v = Mul(t, f) }> (x, i, j)",
    "a scan without a value": "float[4,3] i => float[4] o, float[4,3] p:"
    " o, p = Scan <num_scan_inputs = 1, body = r (float[3] e) => (float m, float[3] v)"
    " { m = ReduceMax <keepdims = 0> (e) v = Neg(e) }> (i)",
    "a scan that reads from outside": "float[3] x, float[4,3] i => float[3] y, float[4,3] o:"
    f" a = Exp(x) y, o = Scan <num_scan_inputs = 1, body = r ({_S3}, float[3] e)"
    " => (float[3] t, float[3] v) <float h = {2.0}>"
    " { b = Mul(e, h) t = Add(s, b) v = Mul(t, a) }> (x, i)",
}
_SEQUENCES: Mapping[str, str] = {
    "parts of a sequence": "float[4,3] x => float[2,3] y, int64 n, float[4,3] z:"
    " s = SplitToSequence <axis = 0> (x, two0) y = SequenceAt(s, last) n = SequenceLength(s)"
    " z = ConcatFromSequence <axis = 0> (s)",
    "parts of unlike sizes": "float[5,3] x => float[A,3] y, float[5,3] z:"
    " s = SplitToSequence <axis = 0> (x, parts) y = SequenceAt(s, last)"
    " z = ConcatFromSequence <axis = 0> (s)",
    "parts without their axis": "float[4,3] x => float[3] y, float[3,4] z:"
    " s = SplitToSequence <axis = 0, keepdims = 0> (x) y = SequenceAt(s, one0)"
    " z = ConcatFromSequence <axis = 1, new_axis = 1> (s)",
    "a sequence that is read before and after it changes": f"{_X}, float[2,3] z =>"
    " int64 n, int64 m, float[2,3] y, float[2,3] w, float[2,3] v:"
    " s = SequenceConstruct(x, z) t = SequenceInsert(s, z, zero0) u = SequenceErase(t, one0)"
    " n = SequenceLength(s) m = SequenceLength(u) y = SequenceAt(s, zero0)"
    " w = SequenceAt(u, zero0) v = SequenceAt(t, one0)",
    "what may be there": "float[2,3] x => bool h, float[2,3] y:"
    " o = Optional(x) h = OptionalHasElement(o) y = OptionalGetElement(o)",
    "a sequence that is mapped": f"{_X}, float[2,3] z => float[4,3] y:"
    " s = SequenceConstruct(x, z) t = SequenceMap <body = r (float[2,3] e) => (float[2,3] v)"
    " { v = Neg(e) }> (s) y = ConcatFromSequence <axis = 0> (t)",
}
_WEIGHTS: Mapping[str, Array] = {
    "zero": np.array([0], np.int64),
    "one": np.array([1], np.int64),
    "eight": np.array([8], np.int64),
    "parts": np.array([1, 3, 1], np.int64),
    "nine": np.array(9, np.int64),
    "zero0": np.array(0, np.int64),
    "one0": np.array(1, np.int64),
    "two0": np.array(2, np.int64),
    "last": np.array(-1, np.int64),
    "none": np.array(0, np.float32),
    "truth": np.array(True),
}
"""What the models read beside their inputs."""

_COUNTS = (2, 0, 3, 1)


def bodies() -> Iterator[Sample]:
    """The models, each with the weights that it reads."""
    for name, text in {**_BRANCHES, **_LOOPS, **_SCANS, **_SEQUENCES}.items():
        ports, _, body = text.partition(":")
        inputs, _, outputs = ports.partition("=>")
        words = set("".join(c if c.isalnum() else " " for c in body).split())
        read = {n: array for n, array in _WEIGHTS.items() if n in words}
        proto = parse(f"bodies ({inputs}) => ({outputs}) {{ {body.replace(_LEFT_OUT, '')} }}", read)
        yield Sample(name, proto)


_LEFT_OUT = "''"


def turns(sample: Sample) -> Sequence[dict[str, Any]]:
    """Inputs for runs of one request: conditions of each value, and counts down to none."""
    found = []
    for number, count in enumerate(_COUNTS):
        feeds = sample.feeds(number)
        for place, (name, array) in enumerate(feeds.items()):
            if array.dtype == np.bool_:
                feeds[name] = np.array(bool(number >> (place % 2) & 1))
            elif name == "k":
                feeds[name] = np.array(count)
        found.append(feeds)
    return found
