"""`make simulate`: many histories of the whole server, on all cores. `--trace SEED` replays one and prints its trace.

    python -m tests.simulation.run --first 0 --seeds 1000
    python -m tests.simulation.run --bucket --seeds 1000       # of one bucket (tablet_simulation)
    python -m tests.simulation.run --trace 13

Prints the number of seeds per minute. `--write` keeps the figures (tests.results).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
import warnings
import zlib
from collections import Counter
from typing import Any

from tests import results

BLOCK = 10
Outcomes = list[tuple[int, int, dict[str, int], str | None, float]]
"""Of some seeds: (seed, digest of the trace, counts, error, virtual seconds)."""


def fixed_hashes() -> bool:
    """Whether sets of texts have the same order in every process: a seed repeats only then."""
    return os.environ.get("PYTHONHASHSEED") == "0"


def run_block(seeds: list[int]) -> Outcomes:
    """Histories of the whole server."""
    from tests.simulation.history import run_history

    # Whatever a server that was killed had only begun.
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
    outcomes = [run_history(seed) for seed in seeds]
    return [(o.seed, o.digest, dict(o.counts), o.error, o.seconds) for o in outcomes]


def run_bucket_block(seeds: list[int]) -> Outcomes:
    """Histories of one bucket."""
    from tests.simulation.tablet_simulation import simulate

    outcomes: Outcomes = []
    for seed in seeds:
        try:
            done = simulate(seed)
        except Exception as e:  # noqa: BLE001 - whatever it is, it is what this seed has found
            outcomes.append((seed, 0, {}, f"{type(e).__name__}: {e}", 0.0))
            continue
        counts = Counter(step.split()[0] for step in done.trace)
        counts["acknowledged"] = sum(batch.acked for batch in done.sent)
        outcomes.append((seed, zlib.crc32("\n".join(done.trace).encode()), dict(counts), None, 0.0))
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=int(os.environ.get("SIM_FIRST_SEED", "0")))
    parser.add_argument("--seeds", type=int, default=int(os.environ.get("SIM_SEEDS", "1000")))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", help="these seeds, with commas between them, instead of a range")
    parser.add_argument("--bucket", action="store_true", help="histories of one bucket, not of the whole server")
    parser.add_argument("--trace", type=int, help="replay this seed and print what happened")
    parser.add_argument("--until-failure", action="store_true", help="end with the first seed that finds a fault")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/results")
    options = parser.parse_args()
    if not fixed_hashes():
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        return subprocess.call([sys.executable, "-m", "tests.simulation.run", *sys.argv[1:]], env=environment)
    if options.trace is not None:
        return trace(options.trace)
    seeds = list(range(options.first, options.first + options.seeds))
    if options.list:
        seeds = [int(text) for text in options.list.split(",")]
    return run_all(seeds, options)


def trace(seed: int) -> int:
    from tests.simulation.history import run_history

    outcome = run_history(seed, keep_trace=True)
    print("\n".join(outcome.trace or ()))
    print(f"seed {seed}: {outcome.error or 'all promises held'}; trace {outcome.digest:08x}")
    return 1 if outcome.error else 0


def run_all(seeds: list[int], options: Any) -> int:
    step = 1 if options.until_failure else BLOCK
    blocks = [seeds[i : i + step] for i in range(0, len(seeds), step)]
    commit = results.commit() if options.write else ""
    began = told = time.monotonic()
    counts: Counter[str] = Counter()
    failures: dict[int, str] = {}
    outcomes: list[Any] = []
    virtual = 0.0
    workers = min(options.workers, len(blocks))
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=50) as pool:
        work = run_bucket_block if options.bucket else run_block
        found = pool.imap_unordered(work, blocks) if workers > 1 else map(work, blocks)
        done = 0
        for block in found:
            for seed, digest, counted, error, seconds in block:
                done += 1
                counts.update({k: v for k, v in counted.items() if not k.startswith("tiering")})
                counts["tiering rounds"] += counted.get("tiering rounds", 0)
                virtual += seconds
                outcomes.append({"seed": seed, "digest": digest, "error": error})
                if error:
                    failures[seed] = error
                    if not options.json:
                        print(f"seed {seed}: {error}", flush=True)
            now = time.monotonic()
            if now - told > 10 and not options.json:
                told = now
                print(f"{done} of {len(seeds)} seeds, {done / (now - began) * 60:.0f} a minute", flush=True)
            if failures and options.until_failure:
                break
    elapsed = time.monotonic() - began
    result = {
        "seeds": done,
        "first_seed": seeds[0],
        "last_seed": seeds[done - 1],
        "failures": {str(seed): error[:300] for seed, error in sorted(failures.items())},
        "seeds_per_minute": round(done / elapsed * 60, 1),
        "workers": workers,
        "virtual_hours": round(virtual / 3600, 2),
        "counts": dict(sorted(counts.items())),
    }
    if options.json:
        print(json.dumps({**result, "outcomes": sorted(outcomes, key=lambda o: o["seed"])}))
    else:
        print(f"{done} seeds from {seeds[0]}, {result['seeds_per_minute']} a minute, {len(failures)} failures")
    if options.write:
        results.write("simulate.bucket" if options.bucket else "simulate", result, commit)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
