"""Settings for the whole test suite."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

# Runs are repeatable everywhere; `HYPOTHESIS_PROFILE=explore` looks for new examples, many more of them.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# For tools/mutants.py, to whom a failure is enough: to look for its smallest example takes minutes.
settings.register_profile(
    "mutants", settings.get_profile("repeatable"), phases=(Phase.explicit, Phase.generate), database=None
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
