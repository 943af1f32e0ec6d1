"""`make proofs`: what it runs, what it counts, where it goes on, and when a count is stale."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tools.proofs import page
from tools.proofs.counts import added
from tools.proofs.history import Repository
from tools.proofs.run import CodeChanged, Options, Runner
from tools.proofs.state import FAILED, NOT_RUN, PASSED, State
from tools.proofs.trials import TRIALS, Trial, chosen

ROOT = Path(__file__).parents[2]

COUNTS = """
import json, os, pathlib, sys
first, count = int(sys.argv[1]), int(sys.argv[2])
folder = pathlib.Path(os.environ["RESULTS_FOLDER"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "fake.json").write_text(json.dumps({"seeds": count, "first_seed": first, "commit": "elsewhere"}))
with open("ran.txt", "a") as ran:
    ran.write(f"{first} ")
if os.path.exists("broken") and first == 10:
    print("seed 13: lost a row")
    sys.exit(1)
"""


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *names, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A small repository: a source of 300 lines, and a trial."""
    folder = tmp_path / "sources"
    (folder / "src").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "docs").mkdir()
    (folder / ".gitignore").write_text("build/\nran.txt\nbroken\n")
    (folder / "src" / "engine.py").write_text("".join(f"line {n}\n" for n in range(300)))
    (folder / "src" / "other.py").write_text("other\n")
    (folder / "tests" / "fake.py").write_text(COUNTS)
    git(folder, "init", "-q")
    commit(folder)
    return folder


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "a change", "--allow-empty")
    return git(folder, "rev-parse", "--short", "HEAD")


def change(folder: Path, lines: int, file: str = "src/engine.py") -> None:
    """Change so many lines of a file: of each, one is removed and one is added."""
    path = folder / file
    before = path.read_text().splitlines()
    path.write_text("\n".join([*(f"changed {n}" for n in range(lines)), *before[lines:]]) + "\n")


def fake(**settings: Any) -> Trial:
    command = [sys.executable, "tests/fake.py", "{first}", "{count}"]
    trial = Trial("fake", command, ("src/engine.py",), ("tests/fake.py",), 1, "seeds", 30, 10)
    return replace(trial, **settings)


def run(folder: Path, *trials: Trial, **options: Any) -> Callable[[], list[Any]]:
    """A run over these trials; each call is one `make proofs`."""
    state = State(folder / "build" / "proofs")
    made = Options(**{"results": folder / "docs" / "results", **options})
    return lambda: Runner(trials or [fake()], Repository(folder), state, made, say=lambda _: None).run()


def kept(folder: Path, trial: str = "fake") -> dict[str, Any]:
    return page.kept(trial, folder / "docs" / "results")


def ran(folder: Path) -> list[int]:
    path = folder / "ran.txt"
    return [int(each) for each in path.read_text().split()] if path.exists() else []


# ---- running --------------------------------------------------------------------------------------------------------


def test_chunks_are_added_up_and_kept_with_the_commit_they_ran_on(sources: Path) -> None:
    [line] = run(sources)()
    assert (line.outcome, line.counted) == (PASSED, 30)
    found = kept(sources)
    assert (found["seeds"], found["first_seed"], found["outcome"]) == (30, 0, "passed")
    assert found["commit"] == git(sources, "rev-parse", "--short", "HEAD")
    assert ran(sources) == [0, 10, 20]


def test_a_run_that_was_killed_goes_on_where_it_stopped(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, put = State(sources / "build" / "proofs"), State.keep

    def killed_at_the_second(self: State, trial: str, chunk: int, found: Any) -> None:
        if chunk == 1:
            raise KeyboardInterrupt
        put(self, trial, chunk, found)

    monkeypatch.setattr(State, "keep", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        run(sources)()
    monkeypatch.undo()
    assert state.last("fake", 0) is not None
    assert kept(sources)["parts"] == [0]
    run(sources)()
    assert ran(sources) == [0, 10, 10, 20]
    assert kept(sources)["seeds"] == 30


def test_a_part_is_kept_and_another_clone_with_the_same_code_goes_on_with_it(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = State.begin

    def killed_at_the_third(self: State, trial: str, chunk: int) -> Path:
        if chunk == 2:
            raise KeyboardInterrupt
        return begin(self, trial, chunk)

    monkeypatch.setattr(State, "begin", killed_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        run(sources)()
    monkeypatch.undo()
    assert (kept(sources)["seeds"], kept(sources)["parts"]) == (20, [0, 1])
    assert state_of(sources)[0] == page.PARTIAL
    ran_on = kept(sources)["commit"]
    assert commit(sources) != ran_on  # the count, and no code
    shutil.rmtree(sources / "build")
    [line] = run(sources)()
    assert (line.outcome, line.counted, ran(sources)) == (PASSED, 30, [0, 10, 20])
    assert kept(sources)["seeds"] == 30
    assert "parts" not in kept(sources)
    assert kept(sources)["commit"] == ran_on
    assert state_of(sources)[0] == page.CURRENT


def test_a_count_of_another_clone_is_not_made_again_as_long_as_it_is_current(sources: Path) -> None:
    run(sources)()
    shutil.rmtree(sources / "build")
    before = kept(sources)
    [line] = run(sources)()
    assert (line.outcome, line.counted, ran(sources)) == (PASSED, 30, [0, 10, 20])
    assert kept(sources) == before
    run(sources, fresh=True)()
    assert ran(sources) == [0, 10, 20] * 2


@pytest.mark.parametrize("parts", [{}, {"parts": [0, 1], "seeds": 20}])
def test_a_count_that_is_stale_is_made_again(sources: Path, parts: dict[str, Any]) -> None:
    run(sources)()
    path = sources / "docs" / "results" / "fake.json"
    path.write_text(json.dumps(kept(sources) | parts))
    shutil.rmtree(sources / "build")
    change(sources, page.LINES_MAX // 2 + 1)
    after = commit(sources)
    run(sources)()
    assert ran(sources) == [0, 10, 20] * 2
    assert (kept(sources)["seeds"], kept(sources)["commit"]) == (30, after)


def test_a_chunk_counts_as_long_as_the_page_would_show_it_as_current(sources: Path) -> None:
    first = git(sources, "rev-parse", "--short", "HEAD")
    run(sources, minutes=0)()
    assert ran(sources) == []  # by the estimate nothing fits
    run(sources)()
    (sources / "docs" / "results" / "fake.json").unlink()
    change(sources, page.LINES_MAX // 2)
    commit(sources)
    run(sources)()
    assert ran(sources) == [0, 10, 20]
    assert kept(sources)["commit"] == first
    change(sources, page.LINES_MAX // 2 + 1)
    after = commit(sources)
    run(sources)()
    assert ran(sources) == [0, 10, 20] * 2
    assert kept(sources)["commit"] == after
    (sources / "tests" / "fake.py").write_text(f"{COUNTS}# a line of its own\n")
    commit(sources)
    run(sources)()
    assert ran(sources) == [0, 10, 20] * 3


def test_what_a_change_mends_is_run_again_alone_and_the_sum_has_the_oldest_commit(sources: Path) -> None:
    (sources / "broken").touch()
    run(sources)()
    first = kept(sources)["commit"]
    (sources / "broken").unlink()
    change(sources, 1)
    commit(sources)
    run(sources)()
    assert ran(sources) == [0, 10, 20, 10]
    assert (kept(sources)["outcome"], kept(sources)["commit"]) == ("passed", first)
    assert state_of(sources) == (page.CURRENT, "2", "")


MEETS = """
import pathlib, sys, time
mine, other = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
mine.touch()
while not other.exists():
    time.sleep(0.01)
"""


def meeting(name: str, other: str, **settings: Any) -> Trial:
    """A trial that does not end until another one runs, too."""
    command = [sys.executable, "-c", MEETS, f"build/{name}", f"build/{other}"]
    return fake(name=name, command=command, unit="runs", chunk=0, **settings)


def test_trials_run_in_lanes_and_those_that_want_the_machine_before_the_others(sources: Path) -> None:
    (sources / "build").mkdir()
    (sources / "build" / "there").touch()
    trials = [meeting("left", "right"), meeting("right", "left"), meeting("alone", "there", alone=True)]
    told: list[str] = []
    options = Options(results=sources / "docs" / "results", lanes=2)
    lines = Runner(trials, Repository(sources), State(sources / "build" / "proofs"), options, say=told.append).run()
    assert [(line.trial.name, line.outcome) for line in lines] == [(t.name, PASSED) for t in trials]
    assert told[0].startswith("[3/3] alone: about 0:01:00, then about 0:01:00 more")


def test_a_trial_that_ends_the_run_ends_its_neighbor(sources: Path) -> None:
    (sources / "build").mkdir()
    changing = "import pathlib; pathlib.Path('src/other.py').write_text('something else')"
    trials = [meeting("waits", "never"), fake(command=[sys.executable, "-c", changing])]
    with pytest.raises(CodeChanged, match="not counted"):
        run(sources, *reversed(trials), lanes=2)()


def test_what_counted_while_the_code_changed_is_not_kept(sources: Path) -> None:
    changing = "import pathlib; pathlib.Path('src/other.py').write_text('something else')"
    with pytest.raises(CodeChanged, match="not counted"):
        run(sources, fake(command=[sys.executable, "-c", changing]))()
    assert State(sources / "build" / "proofs").last("fake", 0) is None


def test_a_failure_stops_nothing_and_is_kept_with_the_command_that_repeats_it(sources: Path) -> None:
    (sources / "broken").touch()
    lines = run(sources, fake(), fake(name="other", command=[sys.executable, "-c", "pass"], unit="runs", chunk=0))()
    assert [line.outcome for line in lines] == [FAILED, PASSED]
    assert lines[0].told == ".venv/bin/python tests/fake.py 10 10 (seed 13: lost a row)"
    assert ran(sources) == [0, 10, 20]
    found = kept(sources)
    assert (found["outcome"], found["again"], found["seeds"]) == ("failed", ".venv/bin/python tests/fake.py 10 10", 30)
    [row] = page.rows(Repository(sources), sources / "docs" / "results", [fake()])
    assert str(row).endswith("| 0 | **FAILED**: again by `.venv/bin/python tests/fake.py 10 10` |")


def test_what_has_failed_is_run_again_on_request_and_its_failure_is_not_forgotten(sources: Path) -> None:
    (sources / "broken").touch()
    run(sources)()
    (sources / "broken").unlink()
    run(sources)()
    assert kept(sources)["outcome"] == "failed"
    run(sources, again=True)()
    assert ran(sources) == [0, 10, 20, 10]
    assert (kept(sources)["outcome"], kept(sources)["failed_before"]) == ("passed", 1)


def test_a_trial_that_the_machine_does_not_allow_is_named_and_an_older_count_stays(sources: Path) -> None:
    run(sources)()
    change(sources, page.LINES_MAX)
    after = commit(sources)
    refusing = [sys.executable, "-c", "print('root is needed'); raise SystemExit(77)"]
    [line] = run(sources, fake(command=refusing))()
    assert (line.outcome, line.told) == (NOT_RUN, "root is needed")
    found = kept(sources)
    assert (found["seeds"], found["not_run"]["commit"]) == (30, after)
    [row] = page.rows(Repository(sources), sources / "docs" / "results", [fake()])
    assert (row.state, row.why) == (page.STALE, f"the code has changed; not run at {after}, root is needed")


def told_by_pytest(*cases: str, code: int = 0) -> Trial:
    """A trial that runs tests, and says in pytest's XML what has become of them."""
    report = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"
    program = f"import sys; open(sys.argv[-1].partition('=')[2], 'w').write({report!r}); sys.exit({code})"
    return fake(command=[sys.executable, "-c", program], tests=True, unit="runs", chunk=0)


PASSING = '<testcase classname="tests.a" name="test_one"/>'
SKIPPED = '<testcase classname="tests.a" name="test_two"><skipped message="no cluster here"/></testcase>'
FAILING = '<testcase classname="tests.a" name="test_three"><failure message="no"/></testcase>'


def test_tests_that_are_all_skipped_are_not_run(sources: Path) -> None:
    [line] = run(sources, told_by_pytest(SKIPPED, SKIPPED))()
    assert (line.outcome, line.told) == (NOT_RUN, "no cluster here")


def test_numbers_of_tests_are_the_figures_of_trials_that_have_no_others(sources: Path) -> None:
    [line] = run(sources, told_by_pytest(PASSING, SKIPPED, FAILING, code=1))()
    assert (line.outcome, line.told.partition(" (")[2]) == (FAILED, "test_three: no)")
    found = kept(sources)
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 1, 1)
    assert (found["failed_tests"], found["skipped_because"]) == (["tests.a::test_three"], ["no cluster here"])


def test_a_chunk_without_an_end_fails(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.proofs.run.SECONDS_MIN", 0.0)
    waiting = fake(command=[sys.executable, "-c", "import time; time.sleep(600)"], minutes=0.0001, chunk=0)
    [line] = run(sources, waiting)()
    assert line.outcome == FAILED
    assert "had not ended after" in line.told


def test_a_share_is_judged_over_all_chunks_whatever_each_says(sources: Path) -> None:
    judge = COUNTS.replace('"commit": "elsewhere"', '"caught": count - (first == 10)') + "\nsys.exit(first == 10)\n"
    (sources / "tests" / "fake.py").write_text(judge)
    commit(sources)
    [line] = run(sources, fake(share_min=0.95))()
    assert line.outcome == PASSED
    [line] = run(sources, fake(share_min=0.97))()
    assert (line.outcome, line.told) == (FAILED, "96.7% were caught, and 97% have to be")


def test_figures_of_chunks_are_added_up_by_what_they_mean() -> None:
    one = {"kills": 5, "seed": 7, "first_seed": 3, "last_seed": 9, "seeds_per_minute": 10.0, "failures": {},
           "counts": {"a": 1}, "honest_max_ms": 5, "server_mb": 9}  # fmt: skip
    two = {**one, "seed": 8, "first_seed": 1, "failures": {"4": "lost"}, "counts": {"a": 2, "b": 1}, "honest_max_ms": 9}
    assert added([one, two]) == {
        "kills": 10, "seed": "7, 8", "first_seed": 1, "last_seed": 9, "seeds_per_minute": 10.0,
        "failures": {"4": "lost"}, "counts": {"a": 3, "b": 1}, "honest_max_ms": 9, "server_mb": 9,
    }  # fmt: skip
    assert added([{"mutants": 40, "caught": 40, "caught_percent": 100.0}, {"mutants": 40, "caught": 30}])[
        "caught_percent"
    ] == pytest.approx(87.5)


# ---- the page -------------------------------------------------------------------------------------------------------


def state_of(folder: Path, trial: Trial | None = None) -> tuple[str, str, str]:
    [row] = page.rows(Repository(folder), folder / "docs" / "results", [trial or fake()])
    return row.state, row.lines, row.why


def test_a_count_is_stale_once_more_than_some_lines_that_it_vouches_for_have_changed(sources: Path) -> None:
    run(sources)()
    assert state_of(sources) == (page.CURRENT, "0", "")
    change(sources, 1, "src/other.py")
    change(sources, page.LINES_MAX // 2)
    commit(sources)
    assert state_of(sources) == (page.CURRENT, str(page.LINES_MAX), "")
    change(sources, page.LINES_MAX // 2 + 1)  # not committed, as before the commit that makes it stale
    assert state_of(sources) == (page.STALE, str(page.LINES_MAX + 2), "the code has changed")


def test_a_count_is_stale_once_its_trial_has_changed(sources: Path) -> None:
    run(sources)()
    (sources / "tests" / "fake.py").write_text(COUNTS + "# less is checked\n")
    assert state_of(sources) == (page.STALE, "0", "1 lines of the trial itself have changed")


def test_new_files_count_as_changed_lines(sources: Path) -> None:
    run(sources)()
    (sources / "src" / "new.py").write_text("a\n" * 3)
    assert state_of(sources, fake(vouches=("src",)))[1] == "3"


def test_a_commit_that_the_history_has_not_is_named(sources: Path) -> None:
    run(sources)()
    lost = kept(sources)["commit"]
    git(sources, "commit", "-q", "--amend", "-m", "another name")
    assert state_of(sources) == (page.UNKNOWN, "?", f"commit {lost} is not in this history")


def test_a_count_of_uncommitted_code_is_no_promise(sources: Path) -> None:
    change(sources, 1)
    run(sources)()
    assert state_of(sources)[0] == page.UNKNOWN


def test_a_count_of_less_than_is_wanted_is_shown_as_a_part(sources: Path) -> None:
    run(sources)()
    assert state_of(sources, fake(amount=20_000)) == (page.PARTIAL, "0", "30 of 20,000 seeds")


def test_a_page_says_what_its_rows_said(sources: Path) -> None:
    run(sources)()
    rows = page.rows(Repository(sources), sources / "docs" / "results", [fake(), fake(name="never")])
    text = "before\n<!-- results: make proofs-page -->\n<!-- end of results -->\nbehind\n"
    read = page.rows_of(page.with_table(text, rows))
    assert [(row.name, row.counted, row.state) for row in read] == [(r.name, r.counted, r.state) for r in rows]
    assert [row.state for row in read] == [page.CURRENT, page.NEVER]


def test_a_page_must_not_show_as_current_what_is_stale(sources: Path) -> None:
    run(sources)()
    results = sources / "docs" / "results"

    def outdated(is_shallow: bool = False) -> tuple[list[str], list[str]]:
        found = {row.name: row for row in page.rows(Repository(sources), results, [fake()])}
        return page.outdated(shown, found, is_shallow=is_shallow)

    shown = page.rows(Repository(sources), results, [fake()])
    assert outdated() == ([], [])
    change(sources, 2)
    assert outdated() == ([], [])  # the number of lines is old, and that is no lie
    change(sources, 200)
    assert outdated() == (["fake"], [])
    shown = page.rows(Repository(sources), results, [fake()])
    assert outdated() == ([], [])


def test_a_shallow_clone_leaves_out_by_name_what_it_cannot_know(sources: Path, tmp_path: Path) -> None:
    run(sources)()
    results = sources / "docs" / "results"
    shown = page.rows(Repository(sources), results, [fake()])
    commit(sources)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{sources}", str(clone))
    repository = Repository(clone)
    assert repository.is_shallow()
    found = {row.name: row for row in page.rows(repository, results, [fake()])}
    assert page.outdated(shown, found, is_shallow=True) == ([], ["fake"])


# ---- the list -------------------------------------------------------------------------------------------------------


def test_every_path_that_a_trial_vouches_for_exists() -> None:
    for trial in TRIALS:
        for path in (*trial.vouches, *trial.own):
            assert (ROOT / path).exists(), f"{trial.name}: {path}"
        for part in trial.command:
            if part.startswith("tests/"):
                assert (ROOT / part).exists(), f"{trial.name}: {part}"
            if part.startswith(("tests.", "tools.")):
                place = ROOT.joinpath(*part.split("."))
                assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), f"{trial.name}: {part}"


def test_names_of_trials_are_their_own_and_their_commands_can_be_made() -> None:
    assert len({trial.name for trial in TRIALS}) == len(TRIALS)
    for trial in TRIALS:
        chunks = list(trial.chunks())
        assert sum(chunk.count for chunk in chunks) == trial.amount
        assert all("{" not in trial.shown(chunk) for chunk in chunks)


def test_all_that_nightly_runs_is_among_the_trials() -> None:
    text = (ROOT / "tools" / "nightly.sh").read_text().replace("\\\n", " ")
    names = text.partition("NIGHTLY:-")[2].partition("}")[0].split()
    assert len(names) > 10
    assert {trial.name.partition(".")[0] for trial in TRIALS} >= set(names)


def test_trials_are_chosen_by_name_or_by_the_name_of_all_their_parts() -> None:
    assert [trial.name for trial in chosen(["simulate.bucket"])] == ["simulate.bucket"]
    assert [trial.name for trial in chosen(["kill-trials"])] == [
        f"kill-trials.{part}" for part in ("hlog", "lmdb", "pyfluss", "transactions", "drivers")
    ]
    assert len(chosen([])) == len(TRIALS)
    with pytest.raises(ValueError, match="there is no trial 'kill'"):
        chosen(["kill"])


def test_the_command_refuses_names_that_are_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.proofs", "nothing"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.partition(";")[0]) == (2, "there is no trial 'nothing'")
