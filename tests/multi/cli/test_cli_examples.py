"""The examples run as a user runs them, on small models whose answer is plain."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(script, *argv, cwd=None):
    command = [sys.executable, str(EXAMPLES / script), *map(str, argv)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, cwd=cwd
    )


def save(path, nodes, shape_in, shape_out, constants=()):
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape_in)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape_out)],
        [numpy_helper.from_array(array, name) for name, array in constants],
    )
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.fixture
def colours(tmp_path):
    """Tells the strongest of red, green and blue."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["mean"], name="mean"),
        helper.make_node("Flatten", ["mean"], ["y"], name="flatten"),
    ]
    return save(tmp_path / "colours.onnx", nodes, ["n", 3, 32, 32], ["n", 3])


@pytest.fixture
def darkness(tmp_path):
    """Takes dark pixels for text."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axis"], ["grey"], name="grey", keepdims=1),
        helper.make_node("Mul", ["grey", "steep"], ["scaled"], name="scale"),
        helper.make_node("Sigmoid", ["scaled"], ["y"], name="squash"),
    ]
    constants = [("axis", np.array([1], np.int64)), ("steep", np.array(-9, np.float32))]
    shapes = ["n", 3, "h", "w"], ["n", 1, "h", "w"]
    return save(tmp_path / "darkness.onnx", nodes, *shapes, constants)


@pytest.fixture
def page(tmp_path):
    """White, 192 x 96 pixels, with a black bar."""
    picture = Image.new("RGB", (192, 96), "white")
    picture.paste((0, 0, 0), (40, 30, 140, 50))
    picture.save(tmp_path / "page.png")
    return tmp_path / "page.png"


@pytest.mark.parametrize(("colour", "label"), [((250, 20, 20), "red"), ((20, 20, 250), "blue")])
def test_classification_names_the_class(tmp_path, colours, colour, label):
    Image.new("RGB", (50, 40), colour).save(tmp_path / "picture.png")
    (tmp_path / "labels.txt").write_text("red\ngreen\nblue\n")
    done = run(
        *("hello_classification.py", colours, tmp_path / "picture.png", "HETERO:CPU,REFERENCE"),
        *("--labels", tmp_path / "labels.txt", "--top", "2"),
    )
    assert done.returncode == 0, done.stderr
    summary, best, second = done.stdout.splitlines()
    assert "2 ops" in summary
    assert best.split()[1] == label
    assert float(best.split()[0]) > float(second.split()[0])


def test_detection_draws_boxes(tmp_path, darkness, page):
    done = run(
        *("hello_object_detection.py", darkness, page, "HETERO:CPU,REFERENCE"),
        *("-o", tmp_path / "boxes.png"),
    )
    assert done.returncode == 0, done.stderr
    (found,) = re.findall(r"^ +([\d.]+)  text +(\d+) (\d+) (\d+) (\d+)$", done.stdout, re.MULTILINE)
    score, left, top, right, bottom = map(float, found)
    grown = 100 * 20 / 120  # area over half the circumference
    assert score == pytest.approx(1, abs=0.05)
    wanted = (40 - grown, 30 - grown, 140 + grown, 50 + grown)
    assert (left, top, right, bottom) == pytest.approx(wanted, abs=3)
    before, after = Image.open(page), Image.open(tmp_path / "boxes.png")
    assert after.size == before.size
    assert after.getpixel((int(left), 40)) != before.getpixel((int(left), 40))


def test_without_a_picture_a_page_is_drawn(tmp_path, colours):
    done = run("hello_classification.py", colours, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "turned_page.png") as page:
        assert page.width > page.height, "it is turned"


def test_made_up_weights_are_told(tmp_path, page):
    done = run("hello_classification.py", "light:squeezenet", page, "CPU")
    assert done.returncode == 0, done.stderr
    assert "its classes mean nothing" in done.stderr


@pytest.mark.parametrize("script", ["hello_classification.py", "hello_object_detection.py"])
def test_errors_are_one_line(script, page, colours, tmp_path):
    missing = run(script, tmp_path / "no.onnx", page, "CPU")
    assert missing.returncode == 1
    assert re.fullmatch(r"error: Model file '.*no.onnx' does not exist .*\n", missing.stderr)
    lost = run(script, colours, tmp_path / "no.png", "CPU")
    assert lost.returncode == 1
    assert re.fullmatch(r"error: .*No such file.*no.png'\n", lost.stderr)


def test_detection_refuses_what_it_cannot_read(colours, page):
    done = run("hello_object_detection.py", colours, page, "REFERENCE")
    assert done.returncode == 1
    assert done.stderr == "error: This example cannot read outputs of shapes (1, 3).\n"


@pytest.mark.parametrize("script", ["hello_classification.py", "hello_object_detection.py"])
def test_help(script):
    done = run(script, "--help")
    assert done.returncode == 0
    assert "[MODEL] [PICTURE]" in done.stdout.upper()
