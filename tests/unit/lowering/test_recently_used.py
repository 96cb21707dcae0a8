"""The cache that is bounded in bytes."""

from __future__ import annotations

from partita.lowering.recently_used import RecentlyUsed


def test_what_was_used_least_recently_goes_until_all_have_room():
    cache = RecentlyUsed[str, bytearray](10, len)
    for key in "abc":
        cache.add(key, bytearray(3))
    assert cache.get("a") is not None
    cache.add("d", bytearray(4))
    assert list(cache) == ["c", "a", "d"]
    assert cache.nbytes == 10
    cache.discard("c")
    cache.discard("c")
    assert cache.get("c") is None
    assert len(cache) == 2
    cache.clear()
    assert len(cache) == 0


def test_the_last_one_stays_however_large():
    cache = RecentlyUsed[str, bytearray](10, len)
    cache.add("small", bytearray(1))
    cache.add("large", bytearray(11))
    assert list(cache) == ["large"]


def test_values_that_have_grown_count_as_they_are():
    cache = RecentlyUsed[str, bytearray](10, len)
    first = bytearray(1)
    cache.add("first", first)
    first.extend(bytes(9))
    cache.add("second", bytearray(1))
    assert list(cache) == ["second"]


def test_values_are_counted_seldom_however_many_there_are():
    asked = []
    cache = RecentlyUsed[int, bytes](1 << 20, lambda value: asked.append(value) or 1)
    for key in range(1000):
        cache.add(key, b"")
    assert len(asked) < 5 * 1000
    assert len(cache) == cache.nbytes == 1000


def test_a_value_that_replaces_another_counts_alone():
    cache = RecentlyUsed[str, bytearray](10, len)
    for size in (6, 7, 8):
        cache.add("again", bytearray(size))
    cache.add("other", bytearray(2))
    assert list(cache) == ["again", "other"]


def test_room_is_made_among_many_values():
    cache = RecentlyUsed[int, bytes](100, len)
    for key in range(1000):
        cache.add(key, b"x")
        if key % 3 == 0:
            cache.discard(key)
    assert cache.nbytes == 99
    assert list(cache)[-1] == 998
