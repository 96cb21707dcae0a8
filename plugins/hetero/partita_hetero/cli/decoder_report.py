"""What ``partita plan`` prints of a decoder: speeds, memory, and the layers of each device."""

from __future__ import annotations

from itertools import groupby

from partita.cli.output import Output
from partita_hetero.options.byte_sizes import format_bytes
from partita_hetero.tuning.decoders.planned_decoder import DecoderPlan, LayerPlace, layer_range


def print_decoder_plan(plan: DecoderPlan, explain: bool, out: Output) -> None:
    """Prints a plan.

    Args:
        plan: The plan.
        explain: Say for every layer why it is where it is, instead of for each run of layers.
        out: Where to.
    """
    _print_layers(plan, explain, out)
    out.text("")
    _print_devices(plan, out)
    out.text("")
    _print_others(plan, out)
    out.text("")
    _print_facts(plan, out)


def _print_devices(plan: DecoderPlan, out: Output) -> None:
    out.table(
        [
            "device",
            "layers",
            "weights",
            "cache",
            "workspace",
            "in all",
            "limit",
            "decode",
            "prompt",
        ],
        [
            [
                one.device,
                one.has or "none",
                format_bytes(one.weight_bytes),
                format_bytes(one.cache_bytes),
                format_bytes(one.workspace_bytes),
                format_bytes(one.total_bytes),
                "" if one.limit_bytes is None else format_bytes(one.limit_bytes),
                f"{one.decode_share:.0%}",
                f"{one.prefill_share:.0%}",
            ]
            for one in plan.devices
        ],
    )


def _print_others(plan: DecoderPlan, out: Output) -> None:
    """Other placements of the layers, by the same costs."""
    out.table(
        ["placement", "decode, tokens/s", "prefill, tokens/s", ""],
        [
            ["this plan", f"{plan.decode:.2f}", f"{plan.prefill:.1f}", ""],
            *(
                [
                    other.name,
                    "" if other.decode is None else f"{other.decode:.2f}",
                    "" if other.prefill is None else f"{other.prefill:.1f}",
                    other.obstacle,
                ]
                for other in plan.others
            ),
        ],
    )


def _print_facts(plan: DecoderPlan, out: Output) -> None:
    request = plan.request
    out.facts(
        {
            "model": plan.model,
            "objective": f"{plan.objective} of a prompt of {request.prompt} tokens and "
            f"{request.new} new ones: {plan.request_us / 1e3:,.1f} ms by the probes",
            "decode": f"{plan.decode:.2f} tokens/s with {request.context} tokens in the cache "
            f"(bandwidth alone would allow {plan.bandwidth_decode:.2f}), "
            f"{plan.decode_at_start:.2f} at the start",
            "prefill": f"{plan.prefill:.1f} tokens/s in chunks of {request.chunk}",
            "bound": f"{plan.bound_us / 1e3:,.1f} ms, by the same costs: this placement is at most "
            f"{plan.gap:.1%} above the optimum",
            **({"tied weights": "; ".join(map(str, plan.tied))} if plan.tied else {}),
            **({"note": ". ".join(plan.notes)} if plan.notes else {}),
            "found in": f"{plan.seconds:.2f} s; nothing of the model was loaded",
        }
    )


def _print_layers(plan: DecoderPlan, explain: bool, out: Output) -> None:
    """A row for each layer, or for each run of layers that are alike."""
    runs = (
        [[layer] for layer in plan.layers]
        if explain
        else [list(run) for _, run in groupby(plan.layers, key=_alike)]
    )
    out.table(
        ["layers", "device", "weights", "cache", "decode us", "chunk us", "why"],
        [
            [
                layer_range([layer.layer for layer in run]),
                run[0].device + (f", experts {run[0].experts}" if run[0].experts else ""),
                format_bytes(sum(layer.weight_bytes for layer in run)),
                format_bytes(sum(layer.cache_bytes for layer in run)),
                f"{sum(layer.decode_us for layer in run):,.1f}",
                f"{sum(layer.prefill_us for layer in run):,.0f}",
                str(run[0].reason),
            ]
            for run in runs
        ],
    )


def _alike(layer: LayerPlace) -> tuple[str, str, str]:
    """Layers between which nothing differs but their number."""
    return (
        "layer" if layer.layer.startswith("layer") else layer.layer,
        layer.device,
        layer.experts,
    )
