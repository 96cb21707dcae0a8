"""Rows of zeros through a model on all nodes of a Ray cluster, by Ray Data.

python examples/deploy/batches.py model.onnx --rows 1000
"""

import argparse
from typing import Any

import numpy as np
import ray

import partita
from partita_ray import BatchPredictor


def main() -> None:
    """Makes as many rows as asked, predicts, and tells what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--device", help="of each worker (default: the node's own choice)")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    ports = partita.Core().read_model(args.model).inputs
    columns = {port.name: _zeros(port, args.rows) for port in ports}
    items = [{name: column[i] for name, column in columns.items()} for i in range(args.rows)]
    done = ray.data.from_items(items).map_batches(
        BatchPredictor,
        fn_constructor_args=(args.model, args.device),
        batch_size=args.batch,
        compute=ray.data.ActorPoolStrategy(size=args.workers),
    )
    done = done.materialize()  # else each question below would compute all rows anew
    print(f"{done.count()} rows: {', '.join(done.schema().names)}")


def _zeros(port: partita.Port, rows: int) -> np.ndarray[Any, Any]:
    """Rows of one input; what is no number among its dimensions is taken to be 1."""
    dims = [dim if isinstance(dim, int) else 1 for dim in (port.shape or ())[1:]]
    return np.zeros((rows, *dims), port.dtype)


if __name__ == "__main__":
    main()
