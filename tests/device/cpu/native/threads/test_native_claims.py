"""Pieces of steps that threads take from one another: each once, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from judge import onnxruntime_results
from sampling import examples

from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.jit.dispatch import entry_of
from partita_cpu.jit.intrinsics.address_call import address
from partita_cpu.jit.intrinsics.atomics import add
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.trampoline import fill
from partita_cpu.machine_model import MachineModel
from partita_cpu.threads.claims import ALL_TAKEN, LINE, claim, least_taken, word_of
from partita_cpu.threads.thread_pool import ROW, Rows, ThreadPool

from ..conftest import CACHES, TOLERANCE, Guarded, choices
from ..gemm.test_native_tiles import convolutions, convolve, run
from ..networks.test_native_layout import Net, compiled
from .test_native_large_pools import walked

POOLS = [1, 2, 3, 5, 8, 16]


@loop
def _take(claims, counts, pieces, least, tid, nt):
    """Counts each piece that a thread takes; shares have fewer pieces from one to the next."""
    words, share = address(claims), tid
    while share >= 0:
        there = max(pieces - share, 0)
        while True:
            first, last = 0, there
            if nt > 1:
                first, last = claim(word_of(words, share), there, least, share != tid)
            for piece in range(first, last):
                add(address(counts) + 8 * (share * pieces + piece), 1)
            if nt == 1 or first == last:
                break
        share = least_taken(words, nt) if nt > 1 else -1


@walked
@pytest.mark.parametrize("size", POOLS)
@pytest.mark.parametrize(("pieces", "least"), [(0, 1), (1, 1), (7, 1), (100, 1), (100, 9), (9, 40)])
def test_each_piece_is_taken_once_whoever_comes(size, pieces, least):
    """Row after row, whose words the thread pool clears."""
    steps, runs = 4, 25
    claims = np.full((steps, size * LINE), ALL_TAKEN, np.int64)
    counts = np.zeros((steps, size * max(pieces, 1)), np.int64)
    entry = entry_of(_take, (claims[0], counts[0], pieces, least))
    slots, table = np.zeros((steps, entry.slots), np.int64), np.zeros((steps, ROW), np.int64)
    for step in range(steps):
        fill(slots[step], entry, (claims[step], counts[step], pieces, least))
        own = slots[step].ctypes.data, size, claims[step].ctypes.data, size
        table[step] = entry.trampoline, *own
    pool, rows = ThreadPool(size), Rows(table.ctypes.data, 0, steps, True)
    for _ in range(runs):
        pool.run(rows)
    pool.stop()
    shares = size if size > 1 else 1
    for share in range(shares):
        there = max(pieces - share, 0)
        mine = counts[:, share * pieces : (share + 1) * pieces]
        np.testing.assert_array_equal(mine[:, :there], runs)
        np.testing.assert_array_equal(mine[:, there:], 0)


def test_parts_become_smaller_and_few_pieces_go_at_once():
    words, found = np.zeros(LINE, np.int64), np.zeros((100, 2), np.int64)
    _note_claims(words, found, 64, 3, 0, 1)
    taken = found[: int(np.argmax(found[:, 0] == found[:, 1]))]
    sizes = (taken[:, 1] - taken[:, 0]).tolist()
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes[:-1]) >= 3 and sum(sizes) == 64
    assert words[0] == ALL_TAKEN


@loop
def _note_claims(words, found, pieces, least, tid, nt):
    for n in range(found.shape[0]):
        found[n, 0], found[n, 1] = claim(address(words), pieces, least, n % 2 == 1)


ROUND_A_CORNER = Images(2, 9, 9, 64, 320, 2, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 9, 9)
"""Panels end with an image, columns of tiles with a group."""


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@examples(40)
@example(images=ROUND_A_CORNER, seed=0, threads=5, caches=CACHES["smallest"], begun=3)
@given(
    images=convolutions(),
    seed=st.integers(0, 99),
    threads=st.sampled_from(POOLS[1:]),
    caches=st.sampled_from([*CACHES.values()]),
    begun=st.integers(0, 9),
)
def test_tiles_are_the_same_whoever_computes_them(
    level, arithmetic, images, seed, threads, caches, begun
):
    """The first thread computes all that is left: shares of others too, from their ends."""
    rng = np.random.default_rng(seed)
    guarded = Guarded()
    pixels = images.batch * images.height * images.width
    x = rng.standard_normal((pixels, images.channels)).astype(np.float32)
    if seed % 5 == 0:
        x[rng.integers(pixels), 0] = np.inf  # where sums are added up otherwise
    channels = images.channels // images.groups
    w = rng.standard_normal((images.outputs, channels, *images.kernel)).astype(np.float32)
    bias = rng.standard_normal(images.outputs).astype(np.float32)
    cut = plan(images, MachineModel(level, 2, caches), arithmetic, threads)
    with np.errstate(invalid="ignore"):
        apart = run(guarded, cut, level, x, w, bias, None, threads=threads)
        shared = np.zeros(threads * LINE, np.int64)
        taken = run(guarded, cut, level, x, w, bias, None, threads=threads, claims=shared)
        wanted = convolve(images, x, w) + bias
    guarded.release()
    np.testing.assert_array_equal(taken, apart)
    assert (shared[::LINE] == ALL_TAKEN).all()
    finite = np.isfinite(wanted)
    sizes = convolve(images, np.abs(np.where(np.isfinite(x), x, 0)), np.abs(w)).max()
    error = np.abs(taken[finite] - wanted[finite]).max(initial=0)
    assert error <= TOLERANCE[arithmetic] * sizes + 5e-7 * np.abs(bias).max()


@walked
@pytest.mark.parametrize("threads", POOLS)
def test_networks_give_the_same_bits_in_every_run(threads):
    """Threads outnumber processors, so that each run is shared otherwise."""
    net = Net(1, 32, 28, 28)
    x, channels = "x", 32
    for outputs, kernel in ((64, 3), (96, 1), (200, 3), (64, 1)):
        x, channels = net.add("Relu", net.conv(x, channels, outputs, kernel)), outputs
    model = net.model(net.conv(x, channels, 8, 1))
    image = net.rng.standard_normal(net.shape).astype(np.float32)
    device = compiled(model, INFERENCE_NUM_THREADS=threads)
    results = [np.array(device(image)[0]) for _ in range(10)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    wanted = onnxruntime_results(model, {"x": image})[0]
    np.testing.assert_allclose(results[0], wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
