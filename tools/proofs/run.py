"""The runner of `make proofs`: chunk after chunk, in lanes, whatever fails; then the counts, and what is left."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.proofs import chunk as chunks
from tools.proofs import page
from tools.proofs.counts import added
from tools.proofs.history import DIRTY, Repository
from tools.proofs.state import FAILED, NOT_RUN, PASSED, Ran, State
from tools.proofs.trials import Chunk, Trial

TELL_SECONDS = 30.0
SECONDS_MIN = 1800.0
"""The least time after which a chunk counts as hung; otherwise ten times its estimate."""

LEFT = "left"


class CodeChanged(Exception):
    """The code changed while a chunk ran: what it has counted belongs to no commit."""


@dataclass(frozen=True)
class Options:
    """How to run. `smoke`: as little as possible of each trial, of which nothing is kept. `again`: also what failed.
    `fresh`: also what is counted. `lanes`: how many trials run at a time."""

    smoke: bool = False
    again: bool = False
    fresh: bool = False
    minutes: float = float("inf")
    lanes: int = 1
    results: Path = page.RESULTS


@dataclass
class Line:
    """A line of the table at the end."""

    trial: Trial
    outcome: str
    counted: int
    seconds: float
    told: str = ""


class Runner:
    """One run over some trials."""

    def __init__(
        self, trials: Sequence[Trial], repository: Repository, state: State, options: Options,
        say: Callable[[str], object] = print, clock: Callable[[], float] = time.monotonic,
        today: Callable[[], str] = lambda: time.strftime("%Y-%m-%d", time.gmtime()),
    ) -> None:  # fmt: skip
        self.trials, self.repository, self.state, self.options = trials, repository, state, options
        self._say, self._clock, self._today = say, clock, today
        self._began = clock()
        self._code = repository.code()
        self._commit = repository.commit()
        self._stops = threading.Event()
        self._installs = threading.Lock()
        self._parts: dict[str, dict[str, Any]] = {}

    # ---- all of it --------------------------------------------------------------------------------------------------

    def run(self) -> list[Line]:
        """Run what is left of all trials; a line for each, in their order. Raises `CodeChanged`.

        First those that want the machine for themselves, then `Options.lanes` of the others at a time.
        """
        numbered = list(enumerate(self.trials, 1))
        lines = {number: self._run(number, trial) for number, trial in numbered if trial.alone}
        with ThreadPoolExecutor(self.options.lanes) as pool:
            others = [(number, trial) for number, trial in numbered if not trial.alone]
            running = {number: pool.submit(self._run, number, trial) for number, trial in others}
            try:
                lines |= {number: each.result() for number, each in running.items()}
            except BaseException:
                self._stops.set()
                pool.shutdown(cancel_futures=True)
                raise
        return [lines[number] for number, _ in numbered]

    def _chunks(self, trial: Trial) -> list[Chunk]:
        if self.options.smoke:
            return [Chunk(0, 0, trial.smoke or 0)]
        return list(trial.chunks())

    def _run(self, number: int, trial: Trial) -> Line:
        for chunk in self._chunks(trial):
            if self._has_run(trial, chunk):
                continue
            if not self._fits(trial, chunk):
                break
            ran = self._run_chunk(number, trial, chunk)
            if ran.outcome == NOT_RUN:
                break
            self._concluded(trial)  # what is counted so far, should this run be killed
        return self._concluded(trial)

    def _has_run(self, trial: Trial, chunk: Chunk) -> bool:
        if chunk.number in self._kept(trial).get("parts", ()):
            return True
        ran = self._ran(trial, chunk)
        return ran is not None and (ran.outcome == PASSED or (ran.outcome == FAILED and not self.options.again))

    def _ran(self, trial: Trial, chunk: Chunk) -> Ran | None:
        """What a chunk of this size has counted, as long as that counts; None if it has to be run.

        It counts as a count of the page does (`page.holds`), so that few lines that change do not cost hours; what
        has failed counts for the same code alone, which a mend changes.
        """
        found = self.state.last(trial.name, chunk.number)
        if found is None or found.count != chunk.count:
            return None
        if found.code == self._code:
            return found
        is_good = found.outcome == PASSED and not self.options.smoke
        return found if is_good and page.holds(trial, found.commit, self.repository) else None

    def _kept(self, trial: Trial) -> dict[str, Any]:
        """The count that was kept before this run, of this clone or another one, as long as it counts; its `parts` are
        all chunks if it is whole."""
        if trial.name not in self._parts:
            kept = {} if self.options.smoke or self.options.fresh else page.kept(trial.name, self.options.results)
            is_good = kept.get("outcome") == PASSED and "not_run" not in kept
            state = page.row_of(trial, kept, self.repository).state if is_good else page.NEVER
            if state == page.CURRENT:
                kept = {**kept, "parts": [chunk.number for chunk in self._chunks(trial)]}
            elif not (state == page.PARTIAL and "parts" in kept):
                kept = {}
            self._parts[trial.name] = kept
        return self._parts[trial.name]

    def _fits(self, trial: Trial, chunk: Chunk) -> bool:
        return self._clock() - self._began + self._estimate(trial, chunk) <= self.options.minutes * 60

    def _estimate(self, trial: Trial, chunk: Chunk) -> float:
        """How long a chunk takes: as the last time, as another one of the trial, or as the list says."""
        for other in (chunk, *self._chunks(trial)):
            ran = self.state.last(trial.name, other.number)
            if ran is not None and ran.outcome == PASSED and ran.count:
                return ran.seconds * chunk.count / ran.count
        return 60 * trial.minutes * chunk.count / max(trial.amount, 1)

    def plan(self) -> list[tuple[Trial, int, float]]:
        """For each trial: how many chunks are left, and how long these take by the estimates."""
        planned = []
        for trial in self.trials:
            left = [chunk for chunk in self._chunks(trial) if not self._has_run(trial, chunk)]
            planned.append((trial, len(left), sum(self._estimate(trial, chunk) for chunk in left)))
        return planned

    def left_seconds(self) -> float:
        """How long all takes that is left, by the estimates, in lanes."""
        planned = self.plan()
        others = [seconds for trial, _, seconds in planned if not trial.alone]
        alone = sum(seconds for trial, _, seconds in planned if trial.alone)
        return alone + max(sum(others) / self.options.lanes, *others, 0)

    # ---- a chunk ----------------------------------------------------------------------------------------------------

    def _run_chunk(self, number: int, trial: Trial, chunk: Chunk) -> Ran:
        estimate, began = self._estimate(trial, chunk), self._clock()
        of_all = self._chunks(trial)
        where = f"[{number}/{len(self.trials)}] {trial.name}"
        if len(of_all) > 1:
            done = f"{chunk.first:,} of {trial.amount:,} {trial.unit} are done"
            where += f", part {chunk.number + 1} of {len(of_all)} ({done})"
        left = max(self.left_seconds() - estimate, 0)
        self._say(f"{where}: about {clock(estimate)}, then about {clock(left)} more; {trial.shown(chunk)}")
        told = began

        def tell(line: str) -> None:
            nonlocal told
            if self._stops.is_set():
                raise KeyboardInterrupt
            now = self._clock()
            if now - told >= TELL_SECONDS:
                told = now
                self._say(f"{where}: {clock(now - began)} of about {clock(max(estimate, now - began))}; all about "
                          f"{clock(max(estimate - (now - began), 0) + left)} more; {line}")  # fmt: skip

        before = self._ran(trial, chunk)
        place = self.state.begin(trial.name, chunk.number)
        seconds_max = max(10 * estimate, SECONDS_MIN)
        ended = chunks.run(trial, chunk, self.repository.root, place, seconds_max, tell, self._installs)
        if not self.options.smoke and self.repository.code() != self._code:
            raise CodeChanged(f"the code changed while {trial.name} ran, so that this part of it is not counted")
        ran = Ran(
            ended.outcome, self._commit, self._code, chunk.first, chunk.count, self._clock() - began, self._today(),
            ended.exit_code, ended.reason, ended.figures,
            before.failed_before + (before.outcome == FAILED) if before is not None else 0,
        )  # fmt: skip
        self.state.keep(trial.name, chunk.number, ran)
        why = f": {ran.reason}; log: {place / 'log.txt'}" if ran.outcome != PASSED else ""
        self._say(f"{where}: {ran.outcome} after {clock(ran.seconds)}{why}")
        return ran

    # ---- the count --------------------------------------------------------------------------------------------------

    def _concluded(self, trial: Trial) -> Line:
        """Judge what the chunks have counted; keep the sum."""
        wanted = self._chunks(trial)
        found = [(chunk, self._ran(trial, chunk)) for chunk in wanted]
        ran = [(chunk, each) for chunk, each in found if each is not None]
        kept = self._kept(trial)  # a sum, which counts whole or, where all its chunks are here, not at all
        parts = set(kept.get("parts", ()))
        if parts <= {chunk.number for chunk, _ in ran}:
            kept, parts = {}, set()
        ran = [(chunk, each) for chunk, each in ran if chunk.number not in parts]
        before = [chunk for chunk in wanted if chunk.number in parts]
        seconds = sum(each.seconds for _, each in ran) + 60 * kept.get("minutes", 0)
        counted = sum(chunk.count for chunk, each in ran if each.outcome != NOT_RUN)
        counted += sum(chunk.count for chunk in before)
        not_run = next((each for _, each in ran if each.outcome == NOT_RUN), None)
        if not_run is not None:
            self._keep_not_run(trial, not_run)
            return Line(trial, NOT_RUN, counted, seconds, not_run.reason)
        failed = [(chunk, each) for chunk, each in ran if each.outcome == FAILED]
        is_whole = len(ran) + len(before) == len(wanted)
        chosen = [(chunk, each) for chunk, each in ran if is_whole or each.outcome == PASSED]
        figures = added([*([kept] if kept else []), *(each.figures for _, each in chosen)])
        told = "; ".join(f"{trial.shown(chunk)} ({each.reason})" for chunk, each in failed[:3])
        if trial.share_min is not None and is_whole and not failed:
            share = figures["caught"] / max(figures[trial.unit], 1)
            if share < trial.share_min and not self.options.smoke:
                told = f"{share:.1%} were caught, and {trial.share_min:.0%} have to be"
        outcome = FAILED if told else PASSED if is_whole else LEFT
        if is_whole or (chosen and self._is_news(trial)):
            again = trial.shown(failed[0][0] if failed else wanted[0])
            about = self._about([each for _, each in chosen], kept, FAILED if told else PASSED, again)
            parts |= {chunk.number for chunk, _ in chosen}
            part = {} if is_whole else {"parts": sorted(parts)}
            self._write(trial, {**figures, **about, **part})
        return Line(trial, outcome, counted, seconds, told)

    def _is_news(self, trial: Trial) -> bool:
        """Whether the count of a part is worth more than what is kept."""
        kept = page.kept(trial.name, self.options.results)
        return page.row_of(trial, kept, self.repository).state != page.CURRENT

    def _about(self, ran: Sequence[Ran], kept: dict[str, Any], outcome: str, again: str) -> dict[str, Any]:
        """What is kept beside the figures of a trial: its commit is the oldest one that a chunk ran on."""
        failed_before = sum(each.failed_before for each in ran) + kept.get("failed_before", 0)
        first = self.repository.oldest([*(each.commit for each in ran), *([kept["commit"]] if kept else [])])
        return {
            **({"failed_before": failed_before} if failed_before else {}),
            "minutes": round(sum(each.seconds for each in ran) / 60 + kept.get("minutes", 0), 1),
            "outcome": outcome,
            **({"again": again} if outcome == FAILED else {}),
            "date": max([*(each.date for each in ran), *([kept["date"]] if kept else [])]),
            "commit": first,
            "cores": os.cpu_count(),
        }

    def _keep_not_run(self, trial: Trial, ran: Ran) -> None:
        """Note beside an older count, if there is one, that this machine could not make another one."""
        figures = page.kept(trial.name, self.options.results)
        told = {"commit": ran.commit, "date": ran.date, "reason": ran.reason}
        self._write(trial, {**figures, "not_run": told})

    def _write(self, trial: Trial, figures: dict[str, Any]) -> None:
        if self.options.smoke:
            return
        self.options.results.mkdir(parents=True, exist_ok=True)
        path = self.options.results / f"{trial.name}.json"
        text = json.dumps(figures, indent=2) + "\n"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)

    # ---- the table --------------------------------------------------------------------------------------------------

    def table(self, lines: Sequence[Line]) -> str:
        made = [f"{line.trial.name:28} {line.outcome:8} {_amount(line):>24} {clock(line.seconds):>9}" for line in lines]
        for line in lines:
            if line.told:
                made.append(f"{line.trial.name} {line.outcome}: {line.told}")
        if DIRTY in self._commit and not self.options.smoke:
            made.append("The code has changes that are not committed: these counts belong to no commit.")
        return "\n".join(made)


def _amount(line: Line) -> str:
    if line.trial.unit == "runs":
        return ""
    return f"{line.counted:,} of {line.trial.amount:,} {line.trial.unit}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
