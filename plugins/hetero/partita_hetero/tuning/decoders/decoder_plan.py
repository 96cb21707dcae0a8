"""Places the layers of a decoder: where memory and the time of a request want them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from partita.contract.query import Reason
from partita.errors import InfeasiblePlanError, PlanError
from partita.generate.context_room import new_tokens
from partita.model.model import Model
from partita.model.prompt_chunk import chunk_tokens
from partita_hetero.compile.placer import Placer
from partita_hetero.cost.attention_probe import AttentionShape
from partita_hetero.cost.device_speed import DecoderSizes
from partita_hetero.cost.token_work import DecoderWork
from partita_hetero.partition.decoder_layers import cache_inputs, decoder_layers
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.planner.chain.problem import Chain, ChainObjective, use_of
from partita_hetero.planner.chain.search import ChainPlan, solve_chain
from partita_hetero.properties import HeteroProperties
from partita_hetero.tuning.decoders.decoder_chain import (
    ChainBuilder,
    DecoderChain,
    DecoderDevice,
    TokenRequest,
    describe_devices,
    formats_of,
)
from partita_hetero.tuning.decoders.decoder_reasons import DecoderReport, whole_request
from partita_hetero.tuning.decoders.decoder_replicas import DecoderReplicas, best_replicas
from partita_hetero.tuning.decoders.planned_decoder import PlannedDecoder
from partita_hetero.tuning.replication import interchangeable_devices

SMALLEST_CONTEXT = 16
"""Below this no context is tried where memory does not suffice."""


def plan_decoder(
    placer: Placer,
    devices: Sequence[DecoderDevice],
    request: TokenRequest,
    objective: ChainObjective,
    out: Mapping[tuple[int, str], Reason],
) -> PlannedDecoder:
    """The best placement of a decoder's layers.

    Args:
        placer: Knows the operations, the pins and what devices take.
        devices: What layers can go to.
        request: What the plan is for.
        objective: What is minimized.
        out: What devices failed to compile.

    Raises:
        InfeasiblePlanError: Memory does not suffice; says which device lacks how much, and which
            context would fit.
        PlanError: The model's cache holds less than the context that is asked for.
    """
    start = time.perf_counter()

    def chain_at(context: int) -> DecoderChain:
        asked = replace(request, context=context)
        return ChainBuilder(placer, devices, asked, out, shrinks=True).build()

    decoder = ChainBuilder(placer, devices, request, out).build()
    whole = whole_request(decoder, request)
    try:
        found = solve_chain(whole, objective)
    except InfeasiblePlanError as error:
        fits = _largest_context(chain_at, request, objective)
        advice = (
            f"A context of {fits} tokens would fit."
            if fits
            else f"Not even {SMALLEST_CONTEXT} tokens of context would fit."
        )
        raise InfeasiblePlanError(
            f"Model '{placer.model.name}' does not fit with a cache for {request.context} tokens: "
            f"{error} {advice} Raise a limit, add a device, or ask for less context."
        ) from error
    found, replicas = _with_replicas(placer.devices, decoder, whole, objective, found)
    report = DecoderReport(placer, decoder, request, objective, found, replicas)
    return report.made(time.perf_counter() - start)


def _with_replicas(
    devices: DeviceList,
    decoder: DecoderChain,
    whole: Chain,
    objective: ChainObjective,
    found: ChainPlan,
) -> tuple[ChainPlan, DecoderReplicas | None]:
    """The plan, or the first of replicas that do more requests, and these."""
    groups = interchangeable_devices(devices, whole.devices) if objective == "THROUGHPUT" else []
    replicas = best_replicas(decoder, whole, groups)
    if replicas is None or replicas.value_us >= found.value_us:
        return found, None
    bound = min(found.bound_us, replicas.value_us)
    first = replicas.choices[0]
    use = use_of(whole, first)
    plan = replace(found, choice=first, value_us=replicas.value_us, bound_us=bound, use=use)
    return plan, replicas


def plan_model(model: Model, devices: DeviceList) -> PlannedDecoder:
    """The plan of a decoder on a device list, by its properties; nothing is compiled.

    Args:
        model: The model.
        devices: The device list.

    Raises:
        PlanError: The model is no decoder, or as :func:`plan_for`.
        InfeasiblePlanError: Memory does not suffice.
    """
    planned = plan_for(Placer(model, devices), {})
    if planned is None:
        raise PlanError(
            f"Model '{model.name}' is not a decoder: it has no input that holds keys and values of "
            "tokens before."
        )
    return planned


def require_room(
    properties: HeteroProperties, longest: Callable[[], int | None] = lambda: None
) -> None:
    """Refuses a request that is asked for and has no room in the context.

    One that nobody asks for is the usual one, of whatever context: it only weighs speeds.

    Args:
        properties: What a decoder is planned for.
        longest: Tells how many tokens the longest text has that the model was made for; ``None``
            if nobody knows.

    Raises:
        ContextLengthError: No cache of so many tokens holds it.
    """
    names = ("HETERO_PROMPT_TOKENS", "HETERO_NEW_TOKENS")
    prompt, new = (
        getattr(properties, name) if name in properties.model_fields_set else None for name in names
    )
    if prompt or new:
        new_tokens(prompt or 1, new, properties.HETERO_CONTEXT, longest())


def plan_for(placer: Placer, out: Mapping[tuple[int, str], Reason]) -> PlannedDecoder | None:
    """The plan that properties ask for; ``None`` if the model is no decoder.

    Devices are measured where the database knows nothing of them.

    Raises:
        ContextLengthError: The request that properties ask for has no room in the context.
        InfeasiblePlanError: Memory does not suffice.
        PlanError: A device cannot be measured, or the model's cache holds less than is asked for.
    """
    if not decoder_layers(placer.model, placer.op_graph):
        return None
    devices, properties = placer.devices, placer.devices.properties
    require_room(properties)
    work = DecoderWork(placer.model, placer.op_graph, properties.HETERO_CONTEXT)
    held = placer.model.weight_bytes + work.cache_bytes(cache_inputs(placer.model))
    request = TokenRequest(
        properties.HETERO_CONTEXT,
        properties.HETERO_PROMPT_TOKENS,
        properties.HETERO_NEW_TOKENS,
        properties.HETERO_CHUNK_TOKENS or chunk_tokens(placer.model, held),
    )
    objective: ChainObjective = "LATENCY"
    if properties.PERFORMANCE_HINT.is_throughput:
        objective = "THROUGHPUT"
    names = _usable(placer, [*devices.names, *placer.pins.values()])
    live = [op for op, constant in enumerate(placer.op_graph.constant) if not constant]
    token = work.work(live, 1, 0)
    sizes = DecoderSizes(
        formats=formats_of(placer, work),
        weight_bytes=placer.model.weight_bytes,
        side=work.matrix_side(live),
        layers=work.layer_products(),
        attention=AttentionShape.of(placer.model, placer.op_graph),
        context=properties.HETERO_CONTEXT,
        token_bytes=int(sum(token.weight_bytes.values())),
        chained=token.formats_in_matrices,
    )
    described = describe_devices(devices=devices, names=names, decoder=sizes)
    return plan_decoder(placer, described, request, objective, out)


def _usable(placer: Placer, names: Sequence[str]) -> list[str]:
    """Devices without references, unless only those take something, or pins want them."""
    listed, devices = list(dict.fromkeys(names)), placer.devices
    pinned = {name for name in placer.pins.values() if devices.is_reference(name)}
    others = [name for name in listed if devices.welcomes(name) or name in pinned]
    answers = [placer.ask(name) for name in others]
    taken = all(
        any(all(placer.op_graph.names()[op] in answer for op in layer.ops) for answer in answers)
        for layer in decoder_layers(placer.model, placer.op_graph)
    )
    return others if taken else listed


def _largest_context(
    chain_at: Callable[[int], DecoderChain], request: TokenRequest, objective: ChainObjective
) -> int:
    """The longest context whose cache has room; 0 if there is none."""

    def fits(context: int) -> bool:
        try:
            solve_chain(whole_request(chain_at(context), request), objective, most_labels=64)
        except (InfeasiblePlanError, PlanError):
            return False
        return True

    if not fits(SMALLEST_CONTEXT):
        return 0
    low, high = SMALLEST_CONTEXT, request.context
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
