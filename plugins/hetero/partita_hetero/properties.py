"""Properties of device HETERO."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ByteSize, Field, PositiveInt, field_validator

from partita.devices.list_properties import ListProperties
from partita.properties.hint import PerformanceMode
from partita.shapes.sample_shapes import normalized
from partita_hetero.executors import DEFAULT, EXECUTORS, Executor
from partita_hetero.options.pins import PinRule

if TYPE_CHECKING:
    ExecutorName = str
else:
    ExecutorName = Literal[tuple(EXECUTORS)]


class HeteroProperties(ListProperties):
    """What an application can set on HETERO, besides the list and what goes to its devices."""

    HETERO_EXECUTOR: ExecutorName = Field(
        DEFAULT.name,
        description="; ".join(f"{one.name}: {one.summary}" for one in EXECUTORS.values()) + ".",
    )
    HETERO_SCHEDULE: Literal["PRIORITY", "COST"] = Field(
        "PRIORITY",
        description="PRIORITY: each operation on the first device of the list that takes it. COST: "
        "where measurements say that the model is fastest; the first compile runs it for some time "
        "on every device.",
    )
    PERFORMANCE_HINT: PerformanceMode = Field(
        PerformanceMode.LATENCY,
        description="What HETERO_SCHEDULE=COST makes fast: one request, or many in flight. Passed "
        "to the devices too, if it is set.",
    )
    HETERO_DUMP_GRAPH_DOT: bool = Field(
        False, description="Write hetero_affinity_<model>.dot and hetero_subgraphs_<model>.dot."
    )
    HETERO_PINS: tuple[PinRule, ...] = Field(
        (),
        description="Wishes for operations, each as text ('conv1=GPU', 're:^/head/=CPU', "
        "'type:Conv=GPU', 'path:encoder.layer.3=GPU', 'meta:key=value=GPU'; with '?' at the end it "
        "is soft) or as a dict of match, pattern, device and hard.",
    )
    HETERO_PLACEMENT_LOCK: str = Field(
        "", description="A lock file written by 'partita plan --lock'; STRICT: it must hold fully."
    )
    HETERO_MEMORY_LIMITS: dict[str, ByteSize] = Field(
        default_factory=dict,
        description="Device to the bytes that weights and live values may take there, as a number "
        "or e.g. '2GiB'; as text 'GPU=2GiB,CPU=512MiB'.",
    )
    HETERO_CONTEXT: int = Field(
        0,
        ge=0,
        description="Tokens that the cache of a decoder must hold. If set, whole layers are placed "
        "by memory and by the time of a request; 0: as any other model.",
    )
    HETERO_PROMPT_TOKENS: PositiveInt = Field(
        512, description="Tokens of a prompt of the request that a decoder is placed for."
    )
    HETERO_NEW_TOKENS: PositiveInt = Field(
        128, description="Tokens generated in the request that a decoder is placed for."
    )
    HETERO_CHUNK_TOKENS: int = Field(
        0,
        ge=0,
        description="Tokens of its prompt that one run reads at most. 0: as many as generators "
        "read unless they are told: 512, and for small models 256 or 128.",
    )
    HETERO_ACCURACY_BUDGET: float = Field(
        0.0,
        ge=0,
        description="Largest error of the outputs, relative to their largest magnitude; operations "
        "are moved, or devices compute in float32, until the model is within it. 0: no budget.",
    )
    HETERO_ACCURACY_REFERENCE: str = Field(
        "", description="The device whose outputs are right; empty: the reference device."
    )
    HETERO_SAMPLE_INPUTS: str = Field(
        "",
        description="What HETERO_SCHEDULE=COST measures and the accuracy budget compares on: an "
        ".npz file with the inputs by name, or a folder with input_0.pb, ...; empty: made-up ones.",
    )
    HETERO_SAMPLE_SHAPES: tuple[dict[str, tuple[PositiveInt, ...]], ...] = Field(
        (),
        description="Where input shapes vary: those that HETERO_SCHEDULE=COST measures and plans "
        "at, as dicts or as text ('ids=1x16; ids=1x128'); inputs that are left out follow by their "
        "symbols. A request gets the plan of the shapes that are nearest to its own.",
    )
    STRICT: bool = Field(
        False,
        description="Raise when a device refuses a pin or fails, instead of moving on.",
    )

    HETERO_TIMEOUT_MS: float = Field(
        0, ge=0, description="A submodel that takes longer counts as failed; 0: no limit."
    )
    HETERO_DRIFT_FACTOR: float = Field(
        4.0,
        ge=0,
        description="A submodel that for some runs takes so many times as long as usual moves to "
        "another device, if the model is faster then; with STRICT it is only told. 0: no matter.",
    )
    REJECT_NAN: bool = Field(
        False, description="A submodel that returns NaN counts as failed (reads every tensor)."
    )

    @property
    def executor(self) -> Executor:
        """What runs the steps of a request."""
        return EXECUTORS[self.HETERO_EXECUTOR]

    @field_validator("HETERO_PINS", mode="before")
    @classmethod
    def _list_of_pins(cls, value: Any) -> Any:
        return [value] if isinstance(value, (str, dict)) else value

    @field_validator("HETERO_SAMPLE_SHAPES", mode="before")
    @classmethod
    def _list_of_shapes(cls, value: Any) -> Any:
        return normalized(value)

    @field_validator("HETERO_MEMORY_LIMITS", mode="before")
    @classmethod
    def _by_device(cls, value: Any) -> Any:
        if isinstance(value, (list, tuple)):  # of pairs, as options of commands give them
            return dict(value)
        if not isinstance(value, str):
            return value
        return dict(entry.rpartition("=")[::2] for entry in value.split(",") if entry)

    @field_validator("HETERO_PLACEMENT_LOCK", "HETERO_SAMPLE_INPUTS", mode="before")
    @classmethod
    def _path(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value
