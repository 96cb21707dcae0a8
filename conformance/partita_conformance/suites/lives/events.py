"""Events between two runs of an application: the levels of dimension ``before``."""

from __future__ import annotations

import contextlib
import gc
import random
from typing import Any

import numpy as np

import partita
from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.judging.requirements import require, require_raises
from partita_conformance.suites.contract.suite_properties import other_settings
from partita_conformance.suites.lives.forms import Form
from partita_conformance.suites.lives.lending import Lent
from partita_conformance.suites.lives.made import Made, Maker, User
from partita_conformance.suites.lives.monitor import Monitor
from partita_conformance.suites.lives.surroundings import Clock

_RUNS = 24


class Events:
    """Does what goes before a run.

    Args:
        bench: The device.
        form: The models.
        maker: Has made them.
        monitor: Looks at everything.
        clock: That of the process.
    """

    def __init__(
        self, bench: Bench, form: Form, maker: Maker, monitor: Monitor, clock: Clock
    ) -> None:
        self._bench, self._form, self._maker, self._monitor = bench, form, maker, monitor
        self._clock = clock

    def happen(self, level: str, made: Made, user: User, rng: random.Random) -> None:
        """Does it.

        Args:
            level: Of dimension ``before``.
            made: The model that is to be used next.
            user: By whom.
            rng: Draws what is left open.
        """
        name = "_" + level.replace(" ", "_")
        if name in vars(Events):
            vars(Events)[name](self, made, user, rng)

    def _wait_an_hour(self, made: Made, user: User, rng: random.Random) -> None:
        self._clock.put_on(3600)

    def _collect(self, made: Made, user: User, rng: random.Random) -> None:
        gc.collect()

    def _fail(self, made: Made, user: User, rng: random.Random) -> None:
        """A run fails because of its sizes or its numbers, as the device alone knows.

        Where numbers decide, who fails has run on the same sizes just before.
        """
        sizes, wrong = self._form.impossible, self._form.wrong
        if wrong:
            sizes = user.sizes or self._usual(made)
        user = user if rng.random() < 0.5 else User(made.compiled)
        if sizes is None or (made.fixed and not wrong):
            self._refuse(made, user, rng)
            return
        feeds = self._plain(made, sizes)
        numbers = np.random.default_rng(rng.randrange(1 << 30))
        usual = dict(feeds)
        feeds.update({name: make(numbers, sizes) for name, make in wrong.items()})
        self._monitor.returned_to(user)
        by_request = rng.random() < 0.5
        if wrong and by_request:
            user.request.infer(usual)
        elif wrong:
            user.runner.run([partita.HostTensor(array) for array in usual.values()])
        if by_request:
            what = "A run that cannot be computed"
            error = require_raises(PartitaError, lambda: user.request.infer(feeds), what)
            require(str(error).strip(), "An error says nothing.")
            return
        lents = [Lent(array, "new", rng) for array in feeds.values()]
        for lent in lents:
            self._monitor.lend(lent)
        tensors = [partita.HostTensor(lent.array) for lent in lents]
        require_raises(PartitaError, lambda: user.runner.run(tensors), "Such a run of a runner")

    def _refuse(self, made: Made, user: User, rng: random.Random) -> None:
        """An input is refused, whatever is wrong with it."""
        ports = [port for port in made.compiled.inputs if port.dtype is not None]
        if not ports:
            return
        port = rng.choice(ports)
        wrong: Any = rng.choice(
            (
                {port.name: np.zeros((1, 2, 3, 4, 5, 6, 7), np.float32)},
                {"nobody's": np.zeros(3, np.float32)},
                {port.name: object()},
            )
        )
        self._monitor.returned_to(user)
        way = user.request.infer if rng.random() < 0.5 else user.request.start_async
        require_raises(PartitaError, lambda: way(wrong), f"An input {[*wrong]}")

    def _usual(self, made: Made) -> dict[str, int]:
        return {**dict.fromkeys(self._form.symbols(made.compiled.inputs), 4), **made.fixed}

    def _plain(self, made: Made, sizes: Any) -> dict[str, Any]:
        rng = np.random.default_rng(5)
        return {
            port.name: self._form.array(port, sizes, rng, "usual", ())
            for port in made.compiled.inputs
        }

    def _compile(self, made: Made, user: User, rng: random.Random) -> None:
        """Another model comes and goes."""
        proto = rng.choice(self._form.protos)
        compiled = self._bench.compile(proto)
        compiled.create_infer_request()

    def _drop(self, made: Made, user: User, rng: random.Random) -> None:
        """Another model goes, with those who used it."""
        self._monitor.write(rng, 1)
        others = self._maker.others(made)
        if others:
            self._maker.drop(rng.choice(others))
        for one in made.users[:-1]:
            if rng.random() < 0.5:
                one.runner.close()
                made.users.remove(one)
        if rng.random() < 0.5:
            gc.collect(1)

    def _ask(self, made: Made, user: User, rng: random.Random) -> None:
        refused = self._bench.refusals(rng.choice(self._form.protos))
        require(not refused, f"What was taken is refused now: {refused}.")
        core, device = self._bench.core, self._bench.device
        core.device_info(device)
        for name in made.compiled.get_property("SUPPORTED_PROPERTIES"):
            made.compiled.get_property(name)

    def _set(self, made: Made, user: User, rng: random.Random) -> None:
        """A property of the device is set for models to come, and set back."""
        found = [one for one in other_settings(self._bench) if "DIR" not in one[0]]
        if not found:
            return
        core, device = self._bench.core, self._bench.device
        name, value = rng.choice(found)
        before = core.get_property(device, name)
        with contextlib.suppress(PartitaError):
            core.set_property(device, {name: value})
        core.set_property(device, {name: before})

    def _export(self, made: Made, user: User, rng: random.Random) -> None:
        with contextlib.suppress(PartitaError, NotImplementedError):
            made.compiled.export_model()

    def _damage(self, made: Made, user: User, rng: random.Random) -> None:
        """A damaged blob is refused."""
        try:
            blob = made.compiled.export_model()
        except (PartitaError, NotImplementedError):
            return
        core, device = self._bench.core, self._bench.device
        bad = blob[: rng.randrange(len(blob))]
        require_raises(PartitaError, lambda: core.import_model(bad, device), "A part of a blob")

    def _read(self, made: Made, user: User, rng: random.Random) -> None:
        list(user.request.get_profiling_info())
        user.request.device_spans()
        user.request.explain_execution()
        list(user.runner.profiling_info())

    def _explain(self, made: Made, user: User, rng: random.Random) -> None:
        require(str(made.compiled.explain()).strip(), "explain() says nothing.")

    def _write(self, made: Made, user: User, rng: random.Random) -> None:
        self._monitor.write(rng)

    def _cancel(self, made: Made, user: User, rng: random.Random) -> None:
        """Nothing runs that could be cancelled."""
        user.request.cancel()
        user.runner.cancel()

    def _run_often(self, made: Made, user: User, rng: random.Random) -> None:
        if self._form.has_state or any(lent.size > 4096 for lent in user.feeds.values()):
            return
        feeds = self._plain(made, self._usual(made))
        other = User(made.compiled)
        tensors = [partita.HostTensor(array) for array in feeds.values()]
        for _ in range(_RUNS):
            other.request.infer(feeds)
            other.runner.run(tensors)

    def _soil_the_heap(self, made: Made, user: User, rng: random.Random) -> None:
        """Memory that is free holds anything."""
        sizes = {lent.array.nbytes for lent in user.feeds.values()} | {16, 64, 200, 1000, 5000}
        kept = [np.full(n + extra, 0xFF, np.uint8) for n in sizes for extra in (0, 16, 64) * 4]
        del kept
