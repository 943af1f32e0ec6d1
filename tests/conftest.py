"""Settings for the whole test suite."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Runs are repeatable everywhere; `HYPOTHESIS_PROFILE=explore` looks for new examples, many more of them.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
