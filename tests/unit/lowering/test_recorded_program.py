"""Programs that are recorded for sizes that stand for others, and what they share."""

import numpy as np

from partita.lowering.geometry.ranges import count_of_range
from partita.lowering.program import EmittedProgram, Operand, OpRecord, Step
from partita.lowering.recording.recorded_program import RecordedProgram
from partita.lowering.shapes.symbolic_size import Recording, evaluated

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)


def kernel():
    """What steps call here; nobody runs it."""


def table(*elements):
    return Operand((len(elements),), INT, np.array(elements, object))


def recorded(make):
    """A program of steps that ``make`` lists for one size, and the same for size 7."""
    recording = Recording()
    n = recording.size(3)
    x, op = Operand((n, 4), FLOAT), OpRecord("op", "Op", ())
    steps = [Step(kernel, args, op, work=2 * n) for args in make(n, x)]
    program = EmittedProgram((x,), (x,), steps, {}, 16 * n, (None,), [op], None, 0)
    made = RecordedProgram(program, recording, "made")
    recording.close(for_good=True)
    return made.program(recording.repeat([7]))


def test_arguments_are_in_their_places_for_other_sizes():
    weight = Operand((2,), FLOAT, np.ones(2, np.float32), lasting=True)

    def make(n, x):
        flat = Operand((4 * n,), FLOAT, base=x)
        return [(x, n, 2.5), (weight, 1), (flat, x, n * 3, weight), ()]

    program = recorded(make)
    x = program.inputs[0]
    first, fixed, third, none = program.steps
    assert (x.shape, program.arena_bytes, program.made) == ((7, 4), 112, "made")
    assert first.args == (x, 7, 2.5) and first.work == 14
    assert fixed.args == (weight, 1)
    flat, *others = third.args
    assert others == [x, 21, weight] and flat.shape == (28,) and flat.base is x
    assert none.args == ()


def test_equal_tables_are_one_and_others_are_not():
    program = recorded(
        lambda n, x: [
            (x, table(n, 5)),
            (x, table(n, 5)),
            (x, table(n, n)),
            (x, table(5, n)),
            (x, table(3, 5)),
        ]
    )
    tables = [step.args[1] for step in program.steps]
    assert [found.const.tolist() for found in tables] == [[7, 5], [7, 5], [7, 7], [5, 7], [3, 5]]
    assert tables[0] is tables[1]
    assert len({id(found) for found in tables}) == 4


def test_tensors_of_one_shape_are_not_one():
    program = recorded(lambda n, x: [(Operand((n,), FLOAT), Operand((n,), FLOAT))])
    one, other = program.steps[0].args
    assert one.shape == other.shape == (7,) and one is not other


def test_constants_are_told_without_the_steps_that_have_them():
    """Of tables, of arrays that a function of sizes makes, and of what is the same for all."""
    weight = Operand((2,), FLOAT, np.ones(2, np.float32), lasting=True)

    def make(n, x):
        made = np.array(evaluated(np.arange, n), object)
        return [(x, table(n, 5)), (table(n, n), Operand((n,), INT, made)), (x, n, weight)]

    program = recorded(make)
    asked = (0, 1), (1, 0), (1, 1), (2, 2)
    found = [program.elements(*place) for place in asked]
    constants = [program.steps[number].args[position].const for number, position in asked]
    assert [array.ctypes.data for array in constants] == [array.ctypes.data for array in found]
    assert [array.tolist() for array in constants] == [[7, 5], [7, 7], [*range(7)], [1, 1]]


def test_results_are_the_operands_that_steps_have():
    program = recorded(lambda n, x: [(x, n)])
    assert program.outputs[0] is program.steps[0].args[0] is program.inputs[0]
    assert program.works.tolist() == [14]


def test_a_range_up_to_a_size_is_of_that_size_and_decides_nothing():
    recording = Recording()
    n, m = recording.size(5), recording.size(8)
    assert count_of_range(0, n, 1).place == n.place
    others = count_of_range(n, m, 1), count_of_range(m, 2, -3)
    recording.close(for_good=False)
    numbers = recording.repeat([9, 4])
    assert [numbers[size.place] for size in others] == [0, 1]
