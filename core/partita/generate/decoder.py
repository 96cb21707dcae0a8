"""Running a compiled decoder: tokens of several sequences in, logits out, the cache kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.core import Core
from partita.errors import InferError, InputError
from partita.generate.caches import empty_beginnings
from partita.generate.caches.cache_types import with_cache_type
from partita.generate.caches.room import give_room
from partita.generate.decoder_ports import SEQUENCE_AXIS, SEQUENCES_KEY, DecoderPorts
from partita.model.model import Model
from partita.model.variables import METADATA_KEY, to_metadata
from partita.runtime.compiled_model import CompiledModel
from partita.runtime.infer_request import InferRequest

Array = np.ndarray[Any, Any]


def prepare(
    model: Model, batch: int, context: int, core: Core, device: str, cache_type: str | None = None
) -> Model:
    """A model as a decoder runs it: number of sequences and capacity fixed, the cache its state.

    Caches that grow become buffers with room, as far as the model and the device allow it. The
    batch of several sequences stays open where runs may take one of them alone.

    Args:
        model: A decoder; a copy is made, weights are shared.
        batch: Sequences at once.
        context: Tokens that the cache has room for.
        core: Where the device is.
        device: Where it is going to run.
        cache_type: Element type of the cache, one of `cache_types.CACHE_TYPES`; by default the
            model's.

    Raises:
        ModelFormatError: It is no decoder.
        ModelError: Its shapes are fixed to others.
        InputError: Its caches cannot be of the type.
    """
    model = model.clone()
    empty_beginnings.simplify(model, SEQUENCE_AXIS)
    ports = DecoderPorts.of(model)
    size: int | str = batch
    if batch > 1 and _may_take_rows(ports, core, device):
        size = "sequences"
        model.ir.metadata_props[SEQUENCES_KEY] = str(batch)
    shapes: dict[Any, Sequence[Any]] = {}
    for name, port in ports.inputs.items():
        dims = list(port.shape or ())
        if dims and not isinstance(dims[0], int) and name != "cache_position":
            shapes[name] = [size, *dims[1:]]
    for name, port in ports.cache_inputs.items():
        _, heads, length, width = port.shape or ()
        shapes[name] = [size, heads, context if ports.is_fixed else length, width]
    model.reshape(shapes)
    if not model.variables:
        model.ir.metadata_props[METADATA_KEY] = to_metadata(ports.caches)
    if not ports.is_fixed:
        model = give_room(core, device, model, ports.caches, SEQUENCE_AXIS, context)
    return model if cache_type is None else with_cache_type(model, ports.caches, cache_type)


def _may_take_rows(ports: DecoderPorts, core: Core, device: str) -> bool:
    """Whether a run may take some rows of the caches alone.

    Their places are fixed, so that rows do not grow together, all inputs have the batch open, and
    the device is a processor, to which it is all the same how many rows there are.
    """
    if not ports.is_fixed or core.device_info(device).kind != "cpu":
        return False
    shapes = [port.shape or () for port in (*ports.inputs.values(), *ports.cache_inputs.values())]
    first = [shape[0] for shape in shapes if shape]
    return not any(isinstance(dim, int) for dim in first) and "cache_position" not in ports.inputs


_SOME_TOKENS = 4
"""Of each row in a run that is made ahead, as prompts are read together."""


class Decoder:
    """One request of a compiled decoder, with the caches of its sequences.

    Each of the ``batch`` rows holds one sequence. A run gives every row equally many tokens; a row
    that has none takes part with padding, which is written behind its valid length (fixed capacity)
    or masked from then on (growing cache), and so never seen.

    Args:
        compiled: What :func:`prepare` made, compiled; or a decoder of fixed shapes.

    Attributes:
        batch: Sequences that one run takes.
        capacity: Tokens that a row has room for; ``None`` if the cache grows.
        counts_places: Whether tokens are known by their places in a cache that grows, for want of
            positions that are given or counted by the mask: texts of a batch must be of one length.
        request: What computes it; caches that devices keep are its states.

    Raises:
        ModelFormatError: It is no decoder.
        InputError: Its number of sequences is open.
    """

    def __init__(self, compiled: CompiledModel) -> None:
        self._compiled, self._ports = compiled, DecoderPorts.of(compiled.model)
        if self._ports.batch is None or (self._ports.is_fixed and self._ports.capacity is None):
            raise InputError(
                f"{compiled!r} was compiled with an open number of sequences or context; give the "
                "model to Generator, or fix them with Model.reshape before it is compiled."
            )
        self.batch: int = self._ports.batch
        self.capacity = self._ports.capacity
        counted = any(op.op_type == "CumSum" for op in compiled.model.ops)
        has_positions = counted or "position_ids" in self._ports.inputs
        self.counts_places: bool = not (self._ports.is_fixed or has_positions)
        self.request = compiled.create_infer_request()
        self._of_row: InferRequest | None = None
        self._row = 0
        self._hands_on = not compiled.model.variables
        kind = self._ports.inputs.get("attention_mask")
        self._mask = np.zeros((self.batch, 0), None if kind is None else kind.dtype)
        self._tokens = self._room = 0
        self._begin()

    def reset(self) -> None:
        """Forgets all sequences; one of a cache that grows needs it, others may do without."""
        self._tokens = 0
        if self._ports.room is not None:
            return  # lengths tell what is valid
        if not self._hands_on:
            self.request.reset_state()
        elif not self._ports.is_fixed:
            for name, port in self._ports.cache_inputs.items():
                dims = [dim if isinstance(dim, int) else 0 for dim in port.shape or ()]
                self.request.set_tensor(name, np.zeros(dims, port.dtype or np.float32))

    def warm_up(self) -> None:
        """Makes short runs that no sequence sees, so that later ones need not prepare."""
        none = np.zeros(self.batch, np.int64)
        self.run(none[:, None], none, none.astype(bool))
        self._begin()
        if self._ports.sequences is None:
            return
        try:
            self._of_row = self._compiled.create_infer_request(self.request, state_rows=1)
        except InferError:
            return  # the device keeps caches elsewhere; runs take all rows
        self.run_row(0, none[:1], 0)
        some = min(_SOME_TOKENS, self.capacity or 1)
        self.run(np.zeros((self.batch, some), np.int64), none, none.astype(bool))

    def _begin(self) -> None:
        """Gives a cache that grows its beginning.

        One of fixed capacity needs none: its pages are there when tokens come, not before.
        """
        if not self._ports.is_fixed:
            self.reset()

    def run(self, tokens: Array, lengths: Array, taking_part: Array) -> Array:
        """Reads tokens behind what each row holds.

        Args:
            tokens: int64 ``[batch, count]``; those of rows that do not take part are padding.
            lengths: Tokens that each row holds already, int64 ``[batch]``.
            taking_part: Which rows do, bool ``[batch]``.

        Returns:
            Logits behind the last token of each row, float32 ``[batch, vocabulary]``; the next run
            may overwrite them.

        Raises:
            InferError: A device failed.
        """
        count = tokens.shape[1]
        ends = lengths + count
        if not self._ports.is_fixed:  # all rows grow together, and the mask tells what each sees
            ends = np.full(self.batch, self._tokens + count)
        total = int(ends.max())
        if self._ports.room is not None:
            self._make_room(total)
        mask = self._attention_mask(ends, total, count)
        last = self._infer(self.request, tokens, lengths, ends, mask)
        if self._hands_on:
            for cache in self._ports.caches:
                written = self.request.get_tensor(cache.written)
                self.request.set_tensor(cache.read, written)
        if not self._ports.is_fixed:
            mask[~taking_part, total - count : total] = 0
            self._mask, self._tokens = mask, total
        return last

    def run_row(self, row: int, tokens: Array, length: int) -> Array:
        """Reads tokens behind what one row holds; no other takes part, not even with padding.

        Args:
            row: Which one.
            tokens: int64 ``[count]``.
            length: Tokens that the row holds already.

        Returns:
            Logits behind the last token, float32 ``[vocabulary]``; the next run may overwrite them.

        Raises:
            InferError: A device failed, or runs take all rows (see `takes_rows`).
        """
        request = self._of_row
        if request is None:
            raise InferError("Runs of this decoder take all rows.")
        if row != self._row:
            request.select_state_rows(row)
            self._row = row
        lengths = np.array([length])
        ends = lengths + len(tokens)
        mask = self._attention_mask(ends, int(ends[0]), len(tokens))
        (logits,) = self._infer(request, tokens[None], lengths, ends, mask)
        return np.asarray(logits)

    @property
    def takes_rows(self) -> bool:
        """Whether a run can take one row alone; known when it is warm."""
        return self._of_row is not None

    def _infer(
        self, request: InferRequest, tokens: Array, lengths: Array, ends: Array, mask: Array
    ) -> Array:
        """Makes a run of the rows that a request has; logits behind the last token of each."""
        batch, count = tokens.shape
        total = int(ends.max())
        every = {
            "input_ids": tokens,
            "attention_mask": mask,
            "position_ids": lengths[:, None] + np.arange(count),
            "seqlens_k": ends - 1,
            "total_sequence_length": total,
            "cache_position": total - count + np.arange(count),
            "beam_idx": np.arange(batch),
            "use_cache_branch": np.array([total > count]),
        }
        feeds = {}
        for name, port in self._ports.inputs.items():
            shape = (-1,) if len(port.shape or ()) == 1 else np.shape(every[name])
            if name == "seqlens_k" and len(port.shape or ()) == 2:
                shape = (batch, 1)
            feed = np.asarray(every[name], port.dtype)
            # An array that is the same object each time is read in place.
            feeds[name] = feed if feed.shape == shape else feed.reshape(shape)
        results = request.infer(feeds, share_outputs=True)
        logits = np.asarray(results[self._ports.logits])
        return np.asarray(logits.reshape(batch, -1, logits.shape[-1])[:, -1], np.float32)

    def _make_room(self, tokens: int) -> None:
        """Gives all caches buffers for so many tokens at least, twice as many as they had."""
        if tokens <= self._room:
            return
        is_first, self._room = not self._room, max(tokens, 2 * self._room, self._ports.room or 0)
        if self._ports.has_whole_mask:
            wider = np.zeros((self.batch, self._room), self._mask.dtype)
            wider[:, : self._tokens] = self._mask[:, : self._tokens]
            self._mask = wider
            if is_first:
                return  # caches are as long as the mask, unless somebody gives them another length
        for variable in self.request.query_state():
            held = variable.state.numpy()
            shape = list(held.shape)
            shape[SEQUENCE_AXIS] = self._room
            larger = np.zeros(shape, held.dtype)
            larger[:, :, : held.shape[SEQUENCE_AXIS]] = held
            variable.state = larger

    def _attention_mask(self, ends: Array, total: int, count: int) -> Array:
        """Which places of the cache and of the new tokens are seen, ``[batch, places]``."""
        if self._ports.is_fixed:
            return (np.arange(total) < ends[:, None]).astype(np.int64)
        if self._ports.has_whole_mask:
            self._mask[:, self._tokens : total] = 1
            return self._mask
        new = np.ones((self.batch, count), self._mask.dtype)
        return np.concatenate([self._mask[:, : self._tokens], new], axis=1)
