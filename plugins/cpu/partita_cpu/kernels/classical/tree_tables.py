"""Decision trees as tables that a loop walks: every comparison becomes one of integers.

Numbers are compared as integers of the same order, so that a rule of any kind becomes one or two of
the form ``key <= limit``: ``x < 3`` has the limit below that of ``x <= 3``, ``x > 3`` has its
branches exchanged, and ``x == 3`` is ``x <= 3`` whose branch asks ``x < 3``. A missing value is the
largest integer, which takes the second branch; nodes that send it to the first one read a second
set of keys, in which it is the smallest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array

LEAF = "LEAF"
NEGATED = {"BRANCH_GT": "BRANCH_LEQ", "BRANCH_GTE": "BRANCH_LT", "BRANCH_NEQ": "BRANCH_EQ"}
RULES = {LEAF, "BRANCH_LEQ", "BRANCH_LT", "BRANCH_EQ", *NEGATED}


class TreeTables(NamedTuple):
    """All trees. A node is named by twice its number, where its two entries begin.

    Attributes:
        nodes: Of each node the limit, and the column of its key; int32, or int64 for float64.
        branches: Of each node where to go if its key is within the limit, and if not; uint32. A
            leaf leads to itself.
        roots: The first node of each tree; uint32.
        starts: Of each node by its number its first entry in the next two, and one more; int64.
        targets: Of entries of leaves, to which result they add; int64.
        weights: Of entries of leaves, what they add.
        two_sets: Whether keys come twice, the second time with missing values the smallest.
        features: Columns of keys that nodes read of one set; at least as many must be given.
    """

    nodes: Array
    branches: Array
    roots: Array
    starts: Array
    targets: Array
    weights: Array
    two_sets: bool
    features: int


class LeafEntries(NamedTuple):
    """What leaves add to results: the node, the result and the number of each entry."""

    nodes: Array
    targets: Array
    weights: Array


class Nodes(NamedTuple):
    """Nodes as a model gives them, children by their numbers.

    Attributes:
        rules: The kind of each, one of `RULES`.
        limits: What inputs are compared with; float32 or float64.
        features: The column of the input.
        first: Where to go if the rule holds.
        second: Where to go if not.
        missing: Whether a missing value takes the first branch.
    """

    rules: Sequence[str]
    limits: Array
    features: Array
    first: Array
    second: Array
    missing: Array


def key_of(x: Array) -> Array:
    """Integers in the order of floats; zeros of both signs are one, NaN the smallest."""
    kind = np.dtype(f"i{x.dtype.itemsize}")
    bits = np.ascontiguousarray(x).view(kind)
    keys = np.where(bits < 0, bits ^ np.iinfo(kind).max, bits)
    keys = np.where(x == 0, 0, keys)
    return np.where(np.isnan(x), np.iinfo(kind).min, keys).astype(kind)


def nodes_of(attrs: Mapping[str, Any], dtype: np.dtype[Any]) -> tuple[Nodes, Array, dict[Any, int]]:
    """What a TreeEnsembleClassifier or TreeEnsembleRegressor says of its nodes.

    Args:
        attrs: The operator's attributes.
        dtype: Of the input.

    Returns:
        The nodes, the roots' numbers, and by tree and node the number.

    Raises:
        ValueError: Attributes do not belong together.
        LookupError: One is missing, or names no node.
    """
    keys = list(zip(attrs["nodes_treeids"], attrs["nodes_nodeids"], strict=True))
    numbers = {key: number for number, key in enumerate(keys)}
    if len(numbers) < len(keys):
        raise ValueError("two nodes of a tree have one number")
    rules = attrs["nodes_modes"]
    trees = attrs["nodes_treeids"]
    first, second = (
        np.array([
            number if rule == LEAF else numbers[tree, child]
            for number, (rule, tree, child) in enumerate(zip(rules, trees, children, strict=True))
        ], np.int64)
        for children in (attrs["nodes_truenodeids"], attrs["nodes_falsenodeids"])
    )  # fmt: skip
    limits = numbers_of(attrs, "nodes_values", dtype)
    missing = attrs.get("nodes_missing_value_tracks_true") or [0] * len(keys)
    features = np.array(attrs["nodes_featureids"], np.int64)
    nodes = Nodes(rules, limits, features, first, second, np.array(missing, bool))
    roots: dict[int, int] = {}
    for number, tree in enumerate(trees):
        roots.setdefault(tree, number)
    return nodes, np.array(list(roots.values()), np.int64), numbers


def numbers_of(attrs: Mapping[str, Any], name: str, dtype: np.dtype[Any]) -> Array:
    """An attribute that is a list of floats, or a tensor, in the type of the input.

    Raises:
        ValueError: It is a tensor of more precise numbers.
    """
    tensor = attrs.get(f"{name}_as_tensor")
    found = np.asarray(attrs.get(name, ()) if tensor is None else tensor)
    if tensor is not None and found.size and not np.can_cast(found.dtype, dtype):
        raise ValueError(f"{name}_as_tensor is {found.dtype}, the input {dtype}")
    return found.astype(dtype).ravel()


def tables_of(nodes: Nodes, roots: Array, leaves: LeafEntries) -> TreeTables:
    """Tables of trees.

    Args:
        nodes: The nodes.
        roots: The first node of each tree.
        leaves: What they add.

    Raises:
        ValueError: Nodes have several parents, rules that are not known, or unequal lists.
    """
    _check_trees(nodes, roots)
    limits = nodes.limits
    ends_of = np.iinfo(f"i{limits.dtype.itemsize}")
    rules = np.array(nodes.rules)
    plain = rules.copy()
    for negated, rule in NEGATED.items():
        plain[rules == negated] = rule
    unequal = np.isnan(limits)
    swapped = (plain != rules) & ~unequal | unequal & (rules == "BRANCH_NEQ")
    keys = key_of(limits)
    keys[(plain == "BRANCH_LT") & ~unequal] -= 1
    keys[unequal] = ends_of.min
    first = np.where(swapped, nodes.second, nodes.first)
    second = np.where(swapped, nodes.first, nodes.second)
    low = nodes.missing ^ swapped
    features = nodes.features.copy()
    leaf = rules == LEAF
    keys[leaf], low[leaf], features[leaf] = ends_of.max, False, 0
    # Of two branches of an equality the first leads to a node behind all others.
    equal = np.flatnonzero((plain == "BRANCH_EQ") & ~unequal)
    added = len(rules) + np.arange(equal.size)
    keys = np.concatenate([keys, keys[equal] - 1])
    below, same = second[equal], first[equal]
    first[equal] = added
    first, second = np.concatenate([first, below]), np.concatenate([second, same])
    low = np.concatenate([low, np.zeros(equal.size, bool)])
    features = np.concatenate([features, features[equal]])
    count = int(features.max(initial=0)) + 1
    order = np.argsort(leaves.nodes, kind="stable")
    ends = np.searchsorted(leaves.nodes[order], np.arange(len(keys) + 1))
    table = np.stack([keys, np.where(low, -1 - features, features)], 1)
    return TreeTables(
        table.astype(keys.dtype),
        (2 * np.stack([first, second], 1)).astype(np.uint32),
        (2 * roots).astype(np.uint32),
        ends.astype(np.int64),
        leaves.targets[order].astype(np.int64),
        leaves.weights[order],
        bool(low.any()),
        count,
    )


def columns_for(tables: TreeTables, width: int) -> Array:
    """The nodes' entries for rows of `width` inputs: columns of the second set lie behind these."""
    nodes = tables.nodes.copy()
    second = nodes[:, 1] < 0
    nodes[second, 1] = width - 1 - nodes[second, 1]
    return nodes


def _check_trees(nodes: Nodes, roots: Array) -> None:
    count = len(nodes.rules)
    fields = nodes.limits, nodes.features, nodes.first, nodes.second, nodes.missing
    if any(len(field) != count for field in fields) or not set(nodes.rules) <= RULES:
        raise ValueError("its lists of nodes have different lengths, or rules that are not known")
    if nodes.features.min(initial=0) < 0:
        raise ValueError("a node reads a column below 0")
    inner = np.array(nodes.rules) != LEAF
    parents = np.zeros(count, np.int64)
    for child in (nodes.first[inner], nodes.second[inner]):
        np.add.at(parents, child, 1)
    # So whoever follows branches from a root ends at a leaf.
    if parents.max(initial=0) > 1 or parents[roots].any():
        raise ValueError("a node has two parents, or the first of a tree has one")


def leaves_of(
    attrs: Mapping[str, Any], kind: str, numbers: Mapping[Any, int], dtype: np.dtype[Any]
) -> LeafEntries:
    """What leaves add, as a TreeEnsembleClassifier or TreeEnsembleRegressor says.

    Args:
        attrs: The operator's attributes.
        kind: ``"class"`` or ``"target"``.
        numbers: By tree and node the number.
        dtype: Of the input.

    Raises:
        ValueError: Lists have different lengths, or a result has a number below 0.
        LookupError: One is missing, or names no node.
    """
    keys: Iterable[Any] = zip(attrs[f"{kind}_treeids"], attrs[f"{kind}_nodeids"], strict=True)
    nodes = np.array([numbers[key] for key in keys], np.int64)
    targets = np.array(attrs[f"{kind}_ids"], np.int64)
    weights = numbers_of(attrs, f"{kind}_weights", dtype)
    if not len(nodes) == len(targets) == len(weights) or targets.min(initial=0) < 0:
        raise ValueError("its lists of leaves have different lengths, or results below 0")
    return LeafEntries(nodes, targets, weights)
