"""The memory plan keeps tensors apart that live at the same time, and wastes little."""

from hypothesis import given
from hypothesis import strategies as st

from partita.lowering.memory_plan import ALIGNMENT, LONG, plan, plan_for_sizes
from partita.lowering.shapes.symbolic_size import Recording, Size

intervals = st.lists(
    st.tuples(
        st.integers(0, 10_000), st.integers(0, 60), st.sampled_from([0, 1, 2, 5, LONG, 60])
    ).map(lambda t: (t[0], t[1], min(t[1] + t[2], 60))),
    max_size=60,
)


def padded(size):
    return -(-size // ALIGNMENT) * ALIGNMENT


@given(intervals)
def test_tensors_alive_at_one_step_never_overlap(tensors):
    check_apart(tensors, *plan(tensors))


@given(intervals, st.lists(st.integers(0, 10_000), min_size=60, max_size=60))
def test_a_plan_for_all_sizes_holds_for_others(tensors, others):
    recording = Recording()
    offsets, total = plan_for_sizes([(recording.size(n), *steps) for n, *steps in tensors])
    recording.close()
    for sizes in ([n for n, _, _ in tensors], others[: len(tensors)], [0] * len(tensors)):
        numbers = recording.repeat(sizes)
        places = [numbers[n.place] if type(n) is Size else n for n in offsets]
        end = numbers[total.place] if type(total) is Size else total
        check_apart(
            [(n, *steps) for n, (_, *steps) in zip(sizes, tensors, strict=True)], places, end
        )


def test_a_plan_for_all_sizes_is_the_usual_one_where_all_are_known():
    chain = [(1000, step, step + 1) for step in range(50)]
    assert plan_for_sizes(chain) == plan(chain)
    recording = Recording()
    size = recording.size(1000)
    _, total = plan_for_sizes([(size, first, last) for _, first, last in chain])
    assert recording.repeat([3000])[total.place] == 2 * padded(3000)


def check_apart(tensors, offsets, total):
    """Looks whether tensors that live at the same time lie apart, within the total."""
    for i, (size, first, last) in enumerate(tensors):
        assert offsets[i] % ALIGNMENT == 0
        assert offsets[i] + size <= total
        for j in range(i):
            other_size, other_first, other_last = tensors[j]
            if first <= other_last and other_first <= last:
                apart = offsets[i] + size <= offsets[j] or offsets[j] + other_size <= offsets[i]
                assert apart, (tensors[i], tensors[j])


@given(intervals)
def test_the_arena_is_between_the_most_that_lives_at_once_and_the_sum(tensors):
    _, total = plan(tensors)
    peak = max(
        (
            sum(padded(s) for s, first, last in tensors if first <= step <= last)
            for step in range(61)
        ),
        default=0,
    )
    assert peak <= total <= sum(padded(size) for size, _, _ in tensors)


def test_a_chain_needs_two_buffers():
    chain = [(1000, step, step + 1) for step in range(50)]
    assert plan(chain)[1] == 2 * padded(1000)


def test_the_smallest_gap_that_fits_is_taken():
    # Two gaps open at step 2, of 1024 and of 256 bytes; a tensor of 256 bytes goes into the second.
    tensors = [(1024, 0, 1), (2048, 0, 3), (256, 0, 1), (2048, 0, 3), (192, 2, 3)]
    offsets, total = plan(tensors)
    assert total == plan(tensors[:4])[1]
    assert offsets[4] in (offsets[0], offsets[2])
