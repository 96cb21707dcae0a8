"""A real cluster for tests: two raylets on this machine, with object stores of their own."""

from __future__ import annotations

import warnings

import pytest

STORE_BYTES = 200 << 20


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """The head and one more node; this process belongs to it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path_factory.mktemp("ray") / "token"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
        made = Cluster(initialize_head=True, head_node_args=head)
        made.add_node(**head)
        ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    patch.undo()


@pytest.fixture
def spare_node(cluster):
    """One more node, for a test to kill; gone afterwards."""
    node = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    cluster.wait_for_nodes()
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node, allow_graceful=False)
