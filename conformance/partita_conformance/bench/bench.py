"""The bench: one device under test, and the answers to compare it with."""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx

import partita
from partita.devices.device_string import parse
from partita.devices.registry import PRIORITIES
from partita.errors import (
    DeviceError,
    DeviceNotFoundError,
    PartitaError,
    PluginError,
    raised_as,
)
from partita.frontends.onnx.lazy_onnx_ir import import_onnx_ir
from partita.tensors.sequence_values import unboxed
from partita_conformance.bench.promises import require_answer, require_face
from partita_conformance.draws.vary import TYPES, in_singles
from partita_conformance.inputs.models import Sample, narrow_samples, samples
from partita_conformance.judging.exact import exact_answers
from partita_conformance.judging.requirements import (
    ConformanceError,
    DeclinedError,
    NotApplicableError,
)

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Any]
T = TypeVar("T")

REFERENCE = "REFERENCE"

_SMALL, _MOST_READ = 1 << 14, 512
"""Models of at most so many bytes are kept when they were read, and so many of them."""


@dataclass(frozen=True)
class Target:
    """Which device to test.

    Attributes:
        device: Its name, with id if need be.
        plugin: ``"module:callable"`` that returns the ``DevicePlugin``, for plugins that are not
            installed; empty for those that are.
        config: Properties that every compile of the run gets.
    """

    device: str
    plugin: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    def open(self) -> partita.Core:
        """A new core that has the device.

        Raises:
            PluginError: The plugin cannot be made.
        """
        core = partita.Core()
        import_onnx_ir()  # before a plugin does, which would bring sympy to each process
        if self.plugin:
            module, _, attribute = self.plugin.partition(":")
            with raised_as(PluginError, f"Plugin '{self.plugin}' cannot be made", PluginError):
                made = getattr(importlib.import_module(module), attribute or "plugin")()
            core.register_plugin(made)
        return core

    def presence(self) -> tuple[str, str]:
        """``"present"``, ``"absent"`` or ``"broken"``, and the reason.

        A device that is not there while some plugin did not load counts as broken: it may be its.
        """
        try:
            core = self.open()
        except PluginError as error:
            return "broken", str(error)
        try:
            core.device_info(self.device)
        except DeviceNotFoundError as error:
            # Which devices a plugin would have brought, nobody knows that did not load it.
            broken = [f for f in core.plugin_failures if not f.cause.startswith("disabled")]
            if broken:
                return "broken", str(error)  # which says what did not load
            return "absent", str(error)
        except DeviceError as error:
            return "absent", str(error)
        except Exception as error:  # noqa: BLE001  # whatever a plugin raises here, it is broken
            return "broken", f"{type(error).__name__}: {error}"
        return "present", ""


class Bench:
    """What checks work with: the device, cores, samples and right answers.

    Args:
        target: The device under test.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.device = target.device
        self.core = target.open()
        self._refused: dict[bytes, frozenset[str]] = {}
        self._read: dict[bytes, partita.Model] = {}

    @functools.cached_property
    def plugin(self) -> partita.DevicePlugin:
        """The plugin object behind the device."""
        name = self.core.resolve_device(self.device).partition(".")[0]
        return self.core.device_api.registry.plugin(name)

    @property
    def device_id(self) -> str:
        """The id of the device, ``""`` if it has none."""
        return self.core.resolve_device(self.device).partition(".")[2]

    @functools.cached_property
    def is_virtual(self) -> bool:
        """Whether the device is made of other devices."""
        return self.core.device_info(self.device).kind == "virtual"

    @functools.cached_property
    def listed(self) -> dict[str, str]:
        """The property that holds the list behind the name of a device made of others."""
        listed = parse(self.device).priorities
        return {} if listed is None else {PRIORITIES: ",".join(listed)}

    def properties(self, **values: Any) -> Any:
        """A properties object as the plugin gets it."""
        return self.plugin.properties_type(DEVICE_ID=self.device_id, **{**self.listed, **values})

    def new_core(self) -> partita.Core:
        """A core of its own, for checks of isolation."""
        return self.target.open()

    def read(self, proto: onnx.ModelProto) -> partita.Model:
        """The model anew, so that no check sees what another did to it.

        A small one is read once, and each caller has a copy of its own: reading takes four times as
        long as copying, and checks ask for most models again and again.
        """
        if proto.ByteSize() > _SMALL or _has_files(proto):
            return self.core.read_model(proto)
        key = proto.SerializeToString(deterministic=True)
        model = self._read.get(key)
        if model is None:
            if len(self._read) >= _MOST_READ:
                self._read.clear()
            model = self._read[key] = self.core.read_model(proto)
        return model.clone()

    def compile(
        self,
        proto: onnx.ModelProto,
        config: Mapping[str, Any] | None = None,
        core: partita.Core | None = None,
    ) -> partita.CompiledModel:
        """Compiles for the device under test, and looks at the face of what comes of it."""
        merged = {**self.target.config, **(config or {})}
        model = self.read(proto)
        compiled = (core or self.core).compile_model(model, self.device, merged)
        require_face(model, compiled)
        return compiled

    def refusals(self, proto: onnx.ModelProto) -> list[str]:
        """Why the device does not take operations of a model; empty if it takes all."""
        return list(self.refused(proto).values())

    def refused(self, proto: onnx.ModelProto) -> dict[str, str]:
        """The operations of a model that the device does not take, by name, and why."""
        model = self.read(proto)
        answer = self.core.query_model(model, self.device, self.target.config)
        require_answer(model, answer, self.plugin.device_name, self.is_virtual)
        refused = [op for op in model.ops if op.name not in answer]
        self.require_the_same_answer(proto, {op.name for op in refused})
        return {op.name: f"{op.op_type}: {answer.reasons[op.name]}" for op in refused}

    def taken(
        self, models: Iterable[tuple[T, onnx.ModelProto]]
    ) -> Iterator[tuple[T, onnx.ModelProto]]:
        """Those of some models that the device takes, each with what belongs to it.

        Args:
            models: What a check knows of each model, and the model.

        Raises:
            NotApplicableError: It takes none of them, which the end of the loop shows.
        """
        found = False
        for known, proto in models:
            if not self.refusals(proto):
                found = True
                yield known, proto
        if not found:
            raise NotApplicableError("the device takes none of the models")

    def require_the_same_answer(self, proto: onnx.ModelProto, refused: set[str]) -> None:
        """Remembers which operations of a model were refused.

        Raises:
            ConformanceError: Others were, when it was asked the last time.
        """
        key = hashlib.sha256(proto.SerializeToString(deterministic=True)).digest()
        before = self._refused.setdefault(key, frozenset(refused))
        if before != refused:
            changed = ", ".join(sorted(before ^ refused))
            raise ConformanceError(
                f"query_model now gives another answer to a question asked before, about {changed}."
            )

    def sample(self, kind: str) -> Sample:
        """The first sample model of a kind that the device takes.

        Raises:
            NotApplicableError: It takes none of them.
        """
        tried = []
        for candidate in (*samples(kind), *narrow_samples(kind)):
            refusals = self.refusals(candidate.proto)
            if not refusals:
                return candidate
            tried.append(f"{candidate.name} ({refusals[0]})")
        raise NotApplicableError(f"the device takes no model of kind '{kind}': {'; '.join(tried)}")

    def expected(self, proto: onnx.ModelProto, feeds: Feeds) -> list[Array]:
        """The right outputs; computed once per model and feeds.

        They are those of :mod:`partita_conformance.judging.exact`, where it has the operator, else
        device REFERENCE's. Where REFERENCE declines or fails, they are what it computes in float32
        of half precision, or onnxruntime's, if that is installed.
        """
        key = hashlib.sha256(proto.SerializeToString(deterministic=True))
        for name, value in sorted(feeds.items()):
            key.update(name.encode())
            _add(key, value)
        return _expected(key.digest(), proto, feeds)

    def decline_unless_taken(self, proto: onnx.ModelProto) -> None:
        """Ends a check of operators that the device says it does not take.

        Raises:
            DeclinedError: It does not take one; the message has its reason.
        """
        refusals = self.refusals(proto)
        if refusals:
            raise DeclinedError(refusals[0])


def _has_files(proto: onnx.ModelProto) -> bool:
    """Whether weights of a model are in files, which may be others the next time."""
    places = {tensor.data_location for tensor in proto.graph.initializer}
    return onnx.TensorProto.EXTERNAL in places


class Answers:
    """Right answers by key, until they are too many, or too large together; then all anew."""

    MOST, MOST_BYTES = 4096, 1 << 26

    def __init__(self) -> None:
        self._kept: dict[bytes, list[Array]] = {}
        self._nbytes = 0

    def get(self, key: bytes) -> list[Array] | None:
        """The answer, if it is kept."""
        return self._kept.get(key)

    def add(self, key: bytes, answer: list[Array]) -> None:
        """Keeps an answer, however large it is."""
        nbytes = sum(map(_nbytes, answer))
        if len(self._kept) >= self.MOST or self._nbytes + nbytes > self.MOST_BYTES:
            self._kept.clear()
            self._nbytes = 0
        self._kept[key] = answer
        self._nbytes += nbytes


_answers = Answers()


def _nbytes(value: Any) -> int:
    """What an output takes, roughly: an array, a sequence, or none at all."""
    if isinstance(value, (list, tuple)):
        return sum(map(_nbytes, value))
    return 0 if value is None else int(np.asarray(value).nbytes)


def _add(key: Any, value: Any) -> None:
    """Adds a value to a hash: an array's elements, not where texts and sequences of them lie."""
    value = unboxed(value) if isinstance(value, np.ndarray) else value
    if value is None or isinstance(value, list):
        key.update(f"{None if value is None else len(value)} in a sequence".encode())
        for item in value or ():
            _add(key, item)
        return
    array = np.asarray(value)
    key.update(f"{array.shape}{array.dtype}".encode())
    texts = array.dtype.hasobject
    key.update(repr(array.tolist()).encode() if texts else np.ascontiguousarray(array).tobytes())


@functools.cache
def _reference_core() -> partita.Core:
    return partita.Core()


@functools.lru_cache(maxsize=8)
def _reference(model: bytes) -> partita.CompiledModel:
    """The model compiled for REFERENCE, kept for the next values."""
    core = _reference_core()
    return core.compile_model(core.read_model(onnx.ModelProto.FromString(model)), REFERENCE)


def _expected(key: bytes, proto: onnx.ModelProto, feeds: Feeds) -> list[Array]:
    answer = _answers.get(key)
    if answer is None:
        answer = _computed(proto, feeds)
        _answers.add(key, answer)
    return answer


def _computed(proto: onnx.ModelProto, feeds: Feeds) -> list[Array]:
    exact = exact_answers(proto, feeds)
    if exact is not None:
        return exact
    try:
        compiled = _reference(proto.SerializeToString(deterministic=True))
        return list(compiled(dict(feeds)).to_tuple())
    except PartitaError:
        other = _in_singles(proto, feeds) or _second_judge(proto, feeds)
        if other is None:
            raise
        return other


def _in_singles(proto: onnx.ModelProto, feeds: Feeds) -> list[Array] | None:
    """What REFERENCE computes in float32 of a model of half precision; ``None`` if it cannot."""
    halves = {np.dtype(np.asarray(array).dtype).name for array in feeds.values()} & _HALVES
    if len(halves) != 1:
        return None
    (half,) = halves
    core = _reference_core()
    try:
        compiled = core.compile_model(core.read_model(in_singles(proto)), REFERENCE)
        wide = {
            name: array.astype(np.float32) if np.asarray(array).dtype.name == half else array
            for name, array in feeds.items()
        }
        results = compiled(wide).to_tuple()
    except PartitaError:
        return None
    return [a.astype(TYPES[half]) if a.dtype == np.float32 else a for a in results]


_HALVES = {"float16", "bfloat16"}


def _second_judge(proto: onnx.ModelProto, feeds: Feeds) -> list[Array] | None:
    """What onnxruntime computes, where REFERENCE cannot; ``None`` if it cannot or is not there."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        return None
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(proto.SerializeToString(), options)
        return [np.asarray(array) for array in session.run(None, dict(feeds))]
    except Exception:  # noqa: BLE001  # it has no common base; that of REFERENCE is shown instead
        return None
