"""The seed of tests that must be green with any: RLPLOSS_TEST_SEED, 0 unless told."""

import os

SEED = int(os.environ.get("RLPLOSS_TEST_SEED", "0"))
