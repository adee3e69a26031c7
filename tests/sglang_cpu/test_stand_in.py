"""Each operation of the stand-in does what a naive reference does. Needs `make_environment.py` to have run."""

import json
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".perf" / "sglang-cpu" / "venv" / "bin" / "python"
OPERATIONS = (
    *("assign_draft_cache_locs_contiguous_cpu", "assign_extend_cache_locs_cpu", "assign_req_to_token_pool_cpu"),
    *("build_draft_decode_metadata_cpu", "build_tree_kernel_efficient_cpu", "copy_all_layer_kv_cache_cpu"),
    *("decode_attention_cpu", "extend_attention_cpu", "fill_accept_out_cache_loc_cpu", "fill_bonus_tokens_cpu"),
    *("reconstruct_indices_from_tree_mask", "rotate_input_ids_cpu", "verify_tree_greedy_cpu"),
)

pytestmark = pytest.mark.needs_sglang


@pytest.fixture(scope="module")
def wrong() -> dict[str, str | None]:
    """What is wrong with each operation, as the interpreter that has torch finds."""
    env = {**os.environ, "PYTHONPATH": str(HERE / "stand_in"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(PYTHON), str(HERE / "stand_in_checks.py")],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def test_every_operation_of_the_stand_in_is_held_against_a_reference(wrong: dict[str, str | None]) -> None:
    assert set(wrong) == set(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_does_what_its_reference_does(wrong: dict[str, str | None], operation: str) -> None:
    assert wrong[operation] is None
