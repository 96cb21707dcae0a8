"""Buffer assignment: which buffers outputs own, and where the others lie in the program's arena."""

from __future__ import annotations

from collections.abc import Sequence

from partita.lowering.memory_plan import plan_for_sizes
from partita.lowering.program import Operand, Step
from partita.lowering.shapes.symbolic_size import present


def owned_buffers(
    outputs: Sequence[Operand | None], inputs: Sequence[Operand]
) -> tuple[Operand | None, ...]:
    """For each output the buffer it owns: a computed one that no earlier output owns."""
    taken = {operand.root for operand in inputs}
    owned: list[Operand | None] = []
    for operand in outputs:
        root = None if operand is None or operand.is_constant else operand.root
        if root is not None and root in taken:
            root = None
        if root is not None:
            taken.add(root)
        owned.append(root)
    return tuple(owned)


def place_buffers(
    steps: Sequence[Step],
    inputs: Sequence[Operand],
    owned: Sequence[Operand | None],
    crossing: Sequence[Operand],
) -> tuple[dict[Operand, int], int]:
    """Arena offsets of the intermediate buffers, by liveness.

    Args:
        steps: In the order in which they run.
        inputs: The program's inputs, which the caller owns.
        owned: The buffers that outputs own, which get no place either.
        crossing: What is read after the last step; it keeps its place to the end.

    Returns:
        The offset in bytes of each buffer, and the size of the arena.
    """
    external = {*inputs, *(operand for operand in owned if operand is not None)}
    kept = {operand.root for operand in crossing}
    lives: dict[Operand, list[int]] = {}
    made: set[Operand] = set()
    for number, step in enumerate(steps):
        made.update(step.results)
        for arg in step.args:
            if isinstance(arg, Operand) and not arg.is_constant and arg.root not in external:
                root = arg.root
                if root not in lives:
                    lives[root] = [root.nbytes, number, number]
                lives[root][2] = len(steps) if root in kept else number
    for operand in made:
        lives.pop(operand, None)
    over = _joined(steps, lives)
    operands = list(lives)
    intervals = [(size, first, last) for size, first, last in lives.values()]
    places, total = plan_for_sizes(intervals)
    offsets = dict(zip(operands, places, strict=True))
    for operand, before in over.items():
        offsets[operand] = offsets[before]
    return offsets, total


def _joined(steps: Sequence[Step], lives: dict[Operand, list[int]]) -> dict[Operand, Operand]:
    """Buffers that are made in the memory of others (:attr:`Step.over`), and those others.

    Args:
        steps: The program's.
        lives: Bytes, first and last step of each buffer. Of those that share memory the first one
            is left, with the life of all.
    """
    joined: dict[Operand, Operand] = {}
    for number, step in enumerate(steps):
        if step.over is None:
            continue
        made, read = (operand.root for operand in step.over)
        place = joined.get(read, read)
        if made is read or made not in lives or place not in lives:
            continue
        (size, first, last), (room, _, end) = lives[made], lives[place]
        uses = sum(isinstance(arg, Operand) and arg.root is read for arg in step.args)
        alone = first == end == number and uses == 1
        # However they are worked out: a size that is another one for other inputs is recorded.
        if alone and present(size) == present(room) and size == room:
            joined[made] = place
            lives[place][2] = last
            del lives[made]
    return joined
