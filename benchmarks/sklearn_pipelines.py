"""What scikit-learn exports, on HETERO:CPU,REFERENCE beside onnxruntime, in one process, in turns.

    python benchmarks/sklearn_pipelines.py [name ...]

Needs scikit-learn and skl2onnx. Each model is fitted to 400 made up rows of 12 numbers, or to 200
texts of eight words, and then predicts these. Both engines have one thread; calls are timed by the
processors' time of the process, and take turns. Prints the median of each in milliseconds, their
ratio, the operators that device CPU leaves to REFERENCE, and how far the results are apart.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR

import partita

TURNS = 15
WORDS = "the quick brown fox jumps over a lazy dog and cat runs far away from my house"
KERNELS = ("linear", "poly", "rbf", "sigmoid")

rng = np.random.default_rng(0)
rows = rng.standard_normal((400, 12)).astype(np.float32)
classes = ((rows[:, 0] + rows[:, 1] ** 2) > 1).astype(int) + (rows[:, 4] > 0.8)
wide = rng.standard_normal((400, 784)).astype(np.float32)
texts = np.array([" ".join(rng.choice(WORDS.split(), 8)) for _ in range(200)])
sides = rng.integers(0, 2, 200)
colours = rng.choice(np.array(["red", "green", "blue"]), (400, 2))


def models() -> Iterator[tuple[str, Any, np.ndarray[Any, Any]]]:
    """Names, fitted models, and what they predict."""
    for kernel in KERNELS:
        yield f"SVC {kernel}", SVC(kernel=kernel, probability=True).fit(rows, classes), rows
        yield f"SVR {kernel}", SVR(kernel=kernel).fit(rows, rows[:, 0]), rows
    yield "SVC poly 784", SVC(kernel="poly", probability=True).fit(wide, classes), wide
    yield "forest", RandomForestClassifier(20, random_state=0).fit(rows, classes), rows
    yield "boosting", GradientBoostingClassifier(n_estimators=20).fit(rows, classes), rows
    yield (
        "scaled logistic",
        make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, classes),
        rows,
    )
    yield "one-hot numbers", OneHotEncoder().fit(classes[:, None]), classes[:, None]
    yield "one-hot texts", OneHotEncoder(handle_unknown="ignore").fit(colours), colours
    column = texts[:, None]
    yield "tf-idf", TfidfVectorizer().fit(texts), column
    yield "counts of pairs", CountVectorizer(ngram_range=(1, 2)).fit(texts), column
    yield (
        "tf-idf logistic",
        make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, sides),
        column,
    )


def exported(model: Any, x: np.ndarray[Any, Any]) -> onnx.ModelProto:
    """The model as ONNX; texts by the rules of locale C, which every system has."""
    types = {"U": StringTensorType, "i": Int64TensorType, "f": FloatTensorType}
    options = {id(model): {"zipmap": False}} if hasattr(model, "classes_") else None
    proto: onnx.ModelProto = to_onnx(
        model,
        initial_types=[("x", types[x.dtype.kind]([None, x.shape[1]]))],
        options=options,
        target_opset={"": 18, "ai.onnx.ml": 3},
    )
    for node in proto.graph.node:
        if node.op_type == "StringNormalizer":
            node.attribute.append(onnx.helper.make_attribute("locale", "C"))
    return proto


def seconds(call: Callable[[], object]) -> float:
    """Of the processor, for a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def apart(found: list[np.ndarray[Any, Any]], wanted: list[np.ndarray[Any, Any]]) -> str:
    """The largest difference of two engines' results."""
    if any(a.shape != b.shape for a, b in zip(found, wanted, strict=True)):
        return "shapes differ"
    pairs = [(a, b) for a, b in zip(found, wanted, strict=True) if b.dtype.kind in "fi"]
    return f"{max(float(np.abs(a - b.astype(np.float64)).max()) for a, b in pairs):.1e}"


def compare(name: str, model: Any, x: np.ndarray[Any, Any]) -> None:
    """Prints a line."""
    proto = exported(model, x)
    feeds = {"x": x.astype(object) if x.dtype.kind == "U" else x}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    core, devices = partita.Core(), "HETERO:CPU,REFERENCE"
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": 1})
    ours = core.read_model(proto)
    placed = core.query_model(ours, devices)
    left = [op.op_type for op in ours.ops if placed[op.name] != "CPU"]
    request = core.compile_model(proto, devices).create_infer_request()
    difference = apart(list(request.infer(feeds).to_tuple()), session.run(None, feeds))
    request.infer(feeds)
    times = [
        (seconds(lambda: request.infer(feeds)), seconds(lambda: session.run(None, feeds)))
        for _ in range(TURNS)
    ]
    own, peer = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    sys.stdout.write(
        f"{name:16} {own:7.3f} {peer:11.3f} {own / peer:6.2f}  {difference:8} {' '.join(left)}\n"
    )
    sys.stdout.flush()


def main(names: list[str]) -> None:
    """Prints the table, or some of its lines."""
    sys.stdout.write("model            Partita onnxruntime  ratio  apart    left to REFERENCE\n")
    for name, model, x in models():
        if not names or any(name.startswith(own) for own in names):
            compare(name, model, x)


if __name__ == "__main__":
    main(sys.argv[1:])
