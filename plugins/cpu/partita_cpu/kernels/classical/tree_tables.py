"""Decision trees as tables that a loop walks: every comparison becomes one of integers.

Numbers are compared as integers of the same order, so that a rule of any kind becomes one or two of
the form ``key <= limit``: ``x < 3`` has the limit below that of ``x <= 3``, ``x > 3`` has its
branches exchanged, and ``x == 3`` is ``x <= 3`` whose branch asks ``x < 3``. A missing value is the
largest integer, which takes the second branch; nodes that send it to the first one read a second
set of keys, in which it is the smallest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array

LEAF = "LEAF"
NEGATED = {"BRANCH_GT": "BRANCH_LEQ", "BRANCH_GTE": "BRANCH_LT", "BRANCH_NEQ": "BRANCH_EQ"}
_MOST = np.iinfo(np.int64).max // 2
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

    rules: Array
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


class NodeNumbers:
    """The place of each node among all, by the tree and the number that it has there.

    Args:
        trees: Of each node its tree.
        ids: Of each node its number there.

    Raises:
        ValueError: Two nodes are the same.
    """

    def __init__(self, trees: Array, ids: Array) -> None:
        if len(trees) != len(ids):
            raise ValueError("its lists of nodes have different lengths")
        self._least = int(ids.min()) if len(ids) else 0
        self._span = int(ids.max()) - self._least + 1 if len(ids) else 1
        keys = self._keys(trees, ids)
        self._order = np.argsort(keys, kind="stable")
        self._keys_in_order = keys[self._order]
        if (self._keys_in_order[1:] == self._keys_in_order[:-1]).any():
            raise ValueError("two nodes of a tree have one number")

    def __getitem__(self, named: tuple[Array, Array]) -> Array:
        """Places of nodes; LookupError if one is not there."""
        trees, ids = named
        if len(trees) != len(ids):
            raise ValueError("its lists of nodes have different lengths")
        known = (ids >= self._least) & (ids - self._least < self._span)
        keys = self._keys(trees, np.where(known, ids, self._least))
        found = np.searchsorted(self._keys_in_order, keys)
        inside = np.minimum(found, max(len(self._order) - 1, 0))
        if not known.all() or not (self._keys_in_order[inside] == keys).all():
            raise LookupError("it names a node that is not there")
        places: Array = self._order[inside]
        return places

    def _keys(self, trees: Array, ids: Array) -> Array:
        if np.abs(trees).max(initial=0) > _MOST // self._span:
            raise ValueError("its trees and nodes have numbers that are too large")
        keys: Array = trees * self._span + (ids - self._least)
        return keys


def nodes_of(attrs: Mapping[str, Any], dtype: np.dtype[Any]) -> tuple[Nodes, Array, NodeNumbers]:
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
    trees, ids = (np.array(attrs[f"nodes_{name}"], np.int64) for name in ("treeids", "nodeids"))
    numbers = NodeNumbers(trees, ids)
    rules = np.array(attrs["nodes_modes"], np.str_)
    inner = rules != LEAF
    first, second = np.arange(len(ids)), np.arange(len(ids))
    for followers, name in ((first, "truenodeids"), (second, "falsenodeids")):
        children = np.array(attrs[f"nodes_{name}"], np.int64)
        if not len(children) == len(rules) == len(ids):
            raise ValueError("its lists of nodes have different lengths")
        followers[inner] = numbers[trees[inner], children[inner]]
    limits = numbers_of(attrs, "nodes_values", dtype)
    missing = attrs.get("nodes_missing_value_tracks_true") or [0] * len(ids)
    features = np.array(attrs["nodes_featureids"], np.int64)
    nodes = Nodes(rules, limits, features, first, second, np.array(missing, bool))
    return nodes, np.sort(np.unique(trees, return_index=True)[1]), numbers


RULES_BY_NUMBER = np.array(
    ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
)
"""What TreeEnsemble has as numbers, but for the membership of sets, which is not computed."""


def entries_of(attrs: Mapping[str, Any], dtype: np.dtype[Any]) -> tuple[Nodes, Array, LeafEntries]:
    """What a TreeEnsemble says of its nodes, which lie in front of its leaves, and of these.

    Args:
        attrs: The operator's attributes.
        dtype: Of the input.

    Returns:
        The nodes, the roots' numbers, and what leaves add.

    Raises:
        ValueError: Attributes do not belong together.
        LookupError: One is missing, or names no node, no leaf or no rule that is known.
    """
    features = np.array(attrs["nodes_featureids"], np.int64)
    targets = np.array(attrs["leaf_targetids"], np.int64)
    count, leaves = len(features), len(targets)
    followers = {}
    for branch in ("true", "false"):
        places = np.array(attrs[f"nodes_{branch}nodeids"], np.int64)
        ends = np.array(attrs[f"nodes_{branch}leafs"], bool)
        if not len(places) == len(ends) == count:
            raise ValueError("its lists of nodes have different lengths")
        if (places < 0).any() or (places >= np.where(ends, leaves, count)).any():
            raise LookupError("it names a node or a leaf that is not there")
        followers[branch] = np.concatenate([places + count * ends, count + np.arange(leaves)])
    roots = np.array(attrs["tree_roots"], np.int64)
    if roots.min(initial=0) < 0 or roots.max(initial=0) >= count:
        raise LookupError("it names a root that is not there")
    modes = np.array(attrs["nodes_modes"], np.int64)
    if modes.max(initial=0) >= len(RULES_BY_NUMBER):
        raise ValueError("nodes ask for members of sets, or have rules that are not known")
    rules = RULES_BY_NUMBER[modes]
    missing = np.array(attrs.get("nodes_missing_value_tracks_true") or [0] * count, bool)
    weights = np.asarray(attrs["leaf_weights"]).astype(dtype)
    if len(weights) != leaves:
        raise ValueError("its lists of leaves have different lengths")
    nodes = Nodes(
        np.concatenate([rules, np.full(leaves, LEAF)]),
        np.concatenate([np.asarray(attrs["nodes_splits"]).astype(dtype), np.zeros(leaves, dtype)]),
        np.concatenate([features, np.zeros(leaves, np.int64)]),
        followers["true"],
        followers["false"],
        np.concatenate([missing, np.zeros(leaves, bool)]),
    )
    return nodes, roots, LeafEntries(count + np.arange(leaves), targets, weights)


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
    rules = nodes.rules
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
    if (
        any(len(field) != count for field in fields)
        or not set(np.unique(nodes.rules).tolist()) <= RULES
    ):
        raise ValueError("its lists of nodes have different lengths, or rules that are not known")
    if nodes.features.min(initial=0) < 0:
        raise ValueError("a node reads a column below 0")
    inner = nodes.rules != LEAF
    parents = np.zeros(count, np.int64)
    for child in (nodes.first[inner], nodes.second[inner]):
        parents += np.bincount(child, minlength=count)
    # So whoever follows branches from a root ends at a leaf, which may have any number of parents.
    if parents[inner].max(initial=0) > 1 or parents[roots].any():
        raise ValueError("a node has two parents, or the first of a tree has one")


def leaves_of(
    attrs: Mapping[str, Any], kind: str, numbers: NodeNumbers, dtype: np.dtype[Any]
) -> LeafEntries:
    """What leaves add, as a TreeEnsembleClassifier or TreeEnsembleRegressor says.

    Args:
        attrs: The operator's attributes.
        kind: ``"class"`` or ``"target"``.
        numbers: Of nodes, by their trees.
        dtype: Of the input.

    Raises:
        ValueError: Lists have different lengths, or a result has a number below 0.
        LookupError: One is missing, or names no node.
    """
    trees, ids = (np.array(attrs[f"{kind}_{name}"], np.int64) for name in ("treeids", "nodeids"))
    nodes = numbers[trees, ids]
    targets = np.array(attrs[f"{kind}_ids"], np.int64)
    weights = numbers_of(attrs, f"{kind}_weights", dtype)
    if not len(nodes) == len(targets) == len(weights) or targets.min(initial=0) < 0:
        raise ValueError("its lists of leaves have different lengths, or results below 0")
    return LeafEntries(nodes, targets, weights)
