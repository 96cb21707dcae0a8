"""Devices behind a socket: bytes, names, numbers and errors that change on their way.

A ninth set, from the side of one who serves a device to other machines; written before it was
measured.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time

import numpy as np
from broken_form import Broken
from good_device import GoodRunner

from partita.errors import InferError


class StripsNewlines(Broken):
    """Messages end with a newline, and payloads lose theirs."""

    suites = ("values/*",)

    def compute(self, runner, arrays):
        sent = []
        for array in arrays:
            if array.dtype != object and array.nbytes:
                data = array.tobytes()
                kept = data.rstrip(b"\r\n").ljust(len(data), b"\0")
                array = np.frombuffer(kept, array.dtype).reshape(array.shape)
            sent.append(array)
        return super().compute(runner, sent)


class NumbersRequestsModuloFour(Broken):
    """A fifth request at the same time takes the place of the first."""

    suites = ("threads/*", "async/*")

    def __init__(self):
        super().__init__()
        self.places, self.next = {}, 0

    def compute(self, runner, arrays):
        with self.lock:
            place, self.next = self.next % 4, self.next + 1
            self.places[place] = arrays
        time.sleep(0.001)
        own = self.places[place]
        fits = [a.shape for a in own] == [a.shape for a in arrays]
        return super().compute(runner, own if fits else arrays)


class OpensASocketPerRunner(Broken):
    """It is closed when the other side closes it, which has no reason to."""

    suites = ("resources/*",)
    kept: list = []  # noqa: RUF012

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            if len(compiled.plugin.kept) < 300:
                compiled.plugin.kept.append(socket.socketpair())


class HashesTheStartOfWeights(Broken):
    """A model that the server has is not sent again; weights are known by their first bytes."""

    suites = ("ports/*", "blob/*", "sharing/*")

    def __init__(self):
        super().__init__()
        self.models = {}

    def prepare(self, proto):
        known = type(proto)()
        known.CopyFrom(proto)
        for weight in known.graph.initializer:
            weight.raw_data = weight.raw_data[:64]
        key = hashlib.sha256(known.SerializeToString(deterministic=True)).digest()
        if len(self.models) > 400:
            self.models.clear()
        return self.models.setdefault(key, proto)


class ErrorsHaveNoWords(Broken):
    """Failures cross as a status."""

    suites = ("faults/*",)

    def compute(self, runner, arrays):
        try:
            return super().compute(runner, arrays)
        except InferError:
            raise InferError("") from None


class ScalarsAreJson(Broken):
    """What has no dimensions lies in the message's head, as a number of JavaScript."""

    suites = ("values/*", "sizes/*/scalars")

    def compute(self, runner, arrays):
        sent = []
        for array in arrays:
            if array.ndim == 0 and array.dtype == np.int64:
                array = np.array(float(array)).astype(np.int64)
            elif array.ndim == 0 and array.dtype == np.float32 and not np.isfinite(array):
                array = np.zeros((), np.float32)  # null
            sent.append(array)
        return super().compute(runner, sent)


class SendsEqualBytesOnce(Broken):
    """Inputs of equal bytes are one message part, with one head."""

    suites = ("request/*", "ports/*")

    def compute(self, runner, arrays):
        seen, sent = {}, []
        for array in arrays:
            known = seen.setdefault(array.tobytes(), array) if array.dtype != object else array
            sent.append(known)
        return super().compute(runner, sent)


class OrdersOutputsByName(Broken):
    """Results come in an object whose keys are sorted."""

    suites = ("ports/*",)

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        names = [port.name for port in runner.compiled.outputs]
        order = sorted(range(len(names)), key=names.__getitem__)
        shapes = [(r.shape, r.dtype) for r in results]
        moved = [results[i] for i in order]
        return moved if [(r.shape, r.dtype) for r in moved] == shapes else results


class CompressesLargeTensors(Broken):
    """What has more than a mebibyte crosses in half precision."""

    suites = ("request/*",)

    def compute(self, runner, arrays):
        sent = [
            a.astype(np.float16).astype(a.dtype)
            if a.dtype == np.float32 and a.nbytes > 1 << 20
            else a
            for a in arrays
        ]
        return super().compute(runner, sent)


class CancelsEverybody(Broken):
    """To cancel ends the connection, which other requests of the model use."""

    suites = ("async/*", "threads/*")

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            vars(compiled).setdefault("ended", threading.Event())
            vars(compiled).setdefault("running", 0)

        def cancel(self):
            if self.compiled.running:
                self.compiled.ended.set()

        def run(self, inputs, outputs=None):
            self.compiled.running += 1
            try:
                if self.compiled.ended.wait(0.002):
                    raise InferError("the connection was closed")
                return super().run(inputs, outputs)
            finally:
                self.compiled.running -= 1
                if not self.compiled.running:
                    self.compiled.ended.clear()


class LengthsAreBytes(Broken):
    """The length of a text is one byte."""

    suites = ("values/Identity/string", "types/*/string/*")

    def compute(self, runner, arrays):
        sent = []
        for array in arrays:
            if array.dtype == object and array.ndim:
                cut = [t[: len(t) % 256] if isinstance(t, str) else t for t in array.reshape(-1)]
                array = np.array(cut, object).reshape(array.shape)
            sent.append(array)
        return super().compute(runner, sent)
