"""The compiled models of a life, obtained in several ways, with their requests."""

from __future__ import annotations

import random
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

import partita
from partita.contract.bound_call import BoundCall
from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.inputs.models import Array
from partita_conformance.suites.contract.suite_properties import other_settings
from partita_conformance.suites.lives.forms import Form
from partita_conformance.suites.lives.lending import Lent

_FIXED = (4, 3, 5)


@dataclass
class Bound:
    """A bound call, with what it reads and writes."""

    call: BoundCall
    inputs: dict[str, Lent]
    outputs: list[Array]


class User:
    """Somebody who uses a compiled model: a request and a runner.

    Attributes:
        request: The request.
        runner: The runner.
        feeds: What was read last.
        sizes: Of symbols, in the last run.
        given: By output the array that was set for it.
        past: What the model's variable is to hold now.
        bound: Calls of the runner, bound one behind the other.
    """

    def __init__(self, compiled: partita.CompiledModel) -> None:
        self.request = compiled.create_infer_request()
        self.runner = compiled.device_model.create_runner()
        self.feeds: dict[str, Lent] = {}
        self.sizes: dict[str, int] = {}
        self.given: dict[int, Array] = {}
        self.past: Array | None = None
        self.bound: list[Bound] = []


@dataclass
class Made:
    """A compiled model.

    Attributes:
        proto: What it computes.
        compiled: It.
        names: Of its operations.
        counting: Whether it was compiled to count.
        fixed: Sizes that it has for good, by symbol.
        users: Who uses it, the last one last.
    """

    proto: onnx.ModelProto
    compiled: partita.CompiledModel
    names: set[str]
    counting: bool = False
    fixed: Mapping[str, int] = field(default_factory=dict)
    users: list[User] = field(default_factory=list)

    def user(self, level: str) -> User:
        """Somebody, as a level of dimension ``request`` names him."""
        match level:
            case "one that is left alone":
                self.users = []
            case "another" if len(self.users) > 1:
                self.users.insert(0, self.users.pop())
                return self.users[-1]
            case "the first one" if self.users:
                self.users.append(self.users.pop(0))
                return self.users[-1]
            case "the last one" if self.users:
                return self.users[-1]
        self.users = [*self.users[-3:], User(self.compiled)]
        return self.users[-1]


class Maker:
    """Makes compiled models of a form's two models, in every way there is.

    Args:
        bench: The device.
        form: The models.
        folder: For files.
    """

    def __init__(self, bench: Bench, form: Form, folder: str) -> None:
        self._bench, self._form, self._folder = bench, form, folder
        self._kept: dict[tuple[int, str], Made] = {}
        self._models: list[weakref.ref[partita.DeviceModel]] = []

    def made(self, variant: int, origin: str, rng: random.Random) -> Made:
        """A compiled model, which is kept if it need not be made anew.

        Args:
            variant: Which of the two models.
            origin: A level of dimension ``origin``; where it cannot be, the model is compiled.
            rng: Draws settings.
        """
        key = variant, origin
        if key not in self._kept or origin == "compiled anew":
            self._kept[key] = self._make(self._form.protos[variant], origin, rng)
            self._models.append(weakref.ref(self._kept[key].compiled.device_model))
        return self._kept[key]

    def left(self) -> int:
        """How many compiled models are there still."""
        return sum(one() is not None for one in self._models)

    def others(self, made: Made) -> list[Made]:
        """All that are kept, but for one."""
        return [one for one in self._kept.values() if one is not made]

    def let_go(self) -> None:
        """Lets all models go, and closes half of their runners."""
        for made in self._kept.values():
            for user in made.users[::2]:
                user.runner.close()
        self._kept = {}

    def drop(self, made: Made) -> None:
        """Lets a model go, and all who use it."""
        self._kept = {key: one for key, one in self._kept.items() if one is not made}

    def _make(self, proto: onnx.ModelProto, origin: str, rng: random.Random) -> Made:
        bench, fixed = self._bench, {}
        match origin:
            case "of another core":
                compiled = bench.compile(proto, core=bench.new_core())  # which goes at once
            case "imported" | "imported from a view":
                compiled = self._imported(proto, "view" in origin)
            case "cached":
                setting = {"CACHE_DIR": str(Path(self._folder) / "cache")}
                bench.compile(proto, setting)
                compiled = bench.compile(proto, setting)
            case "counting":
                compiled = bench.compile(proto, {"PERF_COUNT": True})
            case "set otherwise":
                compiled = self._set(proto, rng)
            case "of a file":
                with tempfile.NamedTemporaryFile(dir=self._folder, suffix=".onnx") as file:
                    file.write(proto.SerializeToString())
                    file.flush()
                    config = bench.target.config
                    compiled = bench.core.compile_model(file.name, bench.device, config)
            case "reshaped":
                model = bench.read(proto)
                symbols = self._form.symbols(model.inputs)
                sizes = dict(zip(symbols, _FIXED, strict=False))
                fixed = dict.fromkeys(sizes, _FIXED[0]) if self._form.alike else sizes
                if fixed:
                    shapes = {
                        port.name: [d if isinstance(d, int) else fixed[str(d)] for d in port.shape]
                        for port in model.inputs
                        if port.shape
                    }
                    model = model.reshape(shapes)
                taken = bench.core.query_model(model, bench.device, bench.target.config)
                if len(taken) < len(model.ops):
                    fixed, model = {}, bench.read(proto)
                compiled = bench.core.compile_model(model, bench.device, bench.target.config)
            case "in parts" if not bench.is_virtual and ":" not in bench.device:
                model = bench.read(proto)
                compiled = bench.core.compile_model(model, f"HETERO:{bench.device}")
            case _:
                compiled = bench.compile(proto)
        names = {op.name for op in bench.read(proto).ops}
        counting = bool(compiled.get_property("PERF_COUNT"))
        return Made(proto, compiled, names, counting, fixed)

    def _imported(self, proto: onnx.ModelProto, seen: bool) -> partita.CompiledModel:
        compiled = self._bench.compile(proto)
        try:
            blob = compiled.export_model()
        except (PartitaError, NotImplementedError):
            return compiled
        given: Any = memoryview(bytearray(b"\x00" + blob))[1:] if seen else blob
        return self._bench.core.import_model(given, self._bench.device)

    def _set(self, proto: onnx.ModelProto, rng: random.Random) -> partita.CompiledModel:
        """Compiled with some setting that changes no numbers."""
        all_of: Sequence[tuple[str, Any]] = [
            (name, value) for name, value in other_settings(self._bench) if "PRECISION" not in name
        ]
        if not all_of:
            return self._bench.compile(proto)
        try:
            return self._bench.compile(proto, dict([rng.choice(all_of)]))
        except PartitaError:  # what cannot be set, suite properties checks
            return self._bench.compile(proto)
