"""`make proofs`: run the long trials, and write their counts to docs/correctness.md.

    make proofs                                  # what is left; a run that was stopped or killed goes on
    PROOFS="simulate kill-trials" make proofs    # these trials alone
    PROOFS_MINUTES=120 make proofs               # begins nothing that would take longer
    PROOFS_LANES=1 make proofs                   # one at a time; without, as many as there are cores
    PROOFS_ARGS=--again make proofs              # also what has failed
    PROOFS_ARGS=--smoke make proofs              # a little of each: do all commands still work?
    PROOFS_ARGS=--list make proofs               # the trials, what is left of each, and how long it takes

What has been run counts as long as the page shows it as current: until more than 100 lines of the code that it vouches
for have changed, or one of its own. A failure does not stop the rest;
the exit code is 1 then, and the table says how to run it again. A trial that the machine does not allow is named.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

from tools.proofs import page
from tools.proofs.history import Repository
from tools.proofs.run import CodeChanged, Options, Runner, clock
from tools.proofs.state import FAILED, State
from tools.proofs.trials import Trial, chosen

ROOT = Path(__file__).parents[2]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "trials", nargs="*", default=os.environ.get("PROOFS", "").split(), help="their names; all without"
    )
    minutes = float(os.environ.get("PROOFS_MINUTES") or "inf")
    parser.add_argument("--minutes", type=float, default=minutes, help="begin nothing that would take longer than this")
    lanes = int(os.environ.get("PROOFS_LANES") or os.cpu_count() or 1)
    parser.add_argument("--lanes", type=int, default=lanes, help="how many trials run at a time")
    parser.add_argument("--again", action="store_true", help="also run again what has failed on this code")
    parser.add_argument("--fresh", action="store_true", help="forget what has been run of these trials")
    parser.add_argument("--dirty", action="store_true", help="run although the code has changes that are not committed")
    parser.add_argument("--smoke", action="store_true", help="a little of each trial; no count is kept")
    parser.add_argument("--list", action="store_true", help="show the trials, and run nothing")
    parser.add_argument("--page", action="store_true", help="write the table of docs/correctness.md, and run nothing")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.page:
        return write_page()
    try:
        trials = chosen(options.trials)
    except ValueError as e:
        print(e, file=sys.stderr)
        return 2
    if options.smoke:
        trials = [trial for trial in trials if trial.smoke is not None]
    repository = Repository(ROOT)
    if not repository.is_available():
        print(f"{ROOT} is no git repository: a count belongs to a commit", file=sys.stderr)
        return 2
    changes = repository.changes()
    if changes and not (options.dirty or options.smoke or options.list):
        print("\n".join(changes), file=sys.stderr)
        print("these changes are not committed, and a count belongs to a commit: commit or stash them (--dirty runs "
              "the trials all the same, and their counts are shown as unknown)", file=sys.stderr)  # fmt: skip
        return 2
    state = State(ROOT / "build" / ("proofs-smoke" if options.smoke else "proofs"))
    try:
        with state.held():
            return run(trials, repository, state, options)
    except BlockingIOError:
        print(f"another run of `make proofs` is at work in {state.folder}", file=sys.stderr)
        return 2


def run(trials: list[Trial], repository: Repository, state: State, options: argparse.Namespace) -> int:
    if options.fresh or options.smoke:
        for trial in trials:
            shutil.rmtree(state.folder / trial.name, ignore_errors=True)
    wanted = Options(options.smoke, options.again, options.fresh, options.minutes, options.lanes)
    runner = Runner(trials, repository, state, wanted, say=say)
    if options.list:
        for trial, chunks, seconds in runner.plan():
            print(f"{trial.name:28} {trial.amount:>8,} {trial.unit:10} {chunks:>3} parts left, about {clock(seconds)}")
        print(f"all about {clock(runner.left_seconds())}")
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        lines = runner.run()
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on with the part that was not done", file=sys.stderr)
        return 130
    except CodeChanged as e:
        print(f"{e}; the same command goes on with the new code", file=sys.stderr)
        return 2
    print(f"\n==== proofs\n{runner.table(lines)}")
    if not options.smoke:
        write_page()
    return int(any(line.outcome == FAILED for line in lines))


def say(text: str) -> None:
    print(text, flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def write_page() -> int:
    try:
        page.write_page()
    except RuntimeError as e:
        print(f"docs/correctness.md is not written: {e}", file=sys.stderr)
        return 1
    print("wrote docs/correctness.md", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
