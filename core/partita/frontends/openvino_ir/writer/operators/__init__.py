"""What ONNX operators become in an IR; each module enters its own into the table when imported."""
