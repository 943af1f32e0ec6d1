"""Table options as typed properties."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.base.options import Option
from forebay.paimon.option_names import KNOWN, check_spelling
from forebay.paimon.options import _NOT_BUILT, _WITHOUT_EFFECT, MB, CoreOption, CoreOptions


def test_options_have_paimons_defaults() -> None:
    o = CoreOptions()
    assert (o.bucket, o.file_format, o.file_compression, o.stats_mode) == (-1, "parquet", "zstd", "truncate(16)")
    assert (o.target_file_size(True), o.target_file_size(False)) == (128 * MB, 256 * MB)
    assert (o.num_sorted_run_compaction_trigger, o.num_sorted_run_stop_trigger, o.num_levels) == (5, 8, 6)
    assert (o.snapshot_time_retained_ms, o.commit_max_retries, o.commit_timeout_ms) == (3_600_000, 10, None)
    assert o.ignore_empty_commit(True) is True
    assert o.partition_legacy_name is True


def test_writers_never_wait_below_the_number_of_runs_that_triggers_compaction() -> None:
    stop = {"num-sorted-run.stop-trigger": "3"}
    assert CoreOptions(stop).num_sorted_run_stop_trigger == 5
    assert CoreOptions({**stop, "num-sorted-run.compaction-trigger": "2"}).num_sorted_run_stop_trigger == 3
    assert CoreOptions({"num-sorted-run.compaction-trigger": "2"}).num_sorted_run_stop_trigger == 5


def test_every_default_is_of_the_type_that_reading_gives() -> None:
    samples = {int: "7", float: "0.5", bool: "true", str: "none"}
    options = [o for o in vars(CoreOptions).values() if isinstance(o, CoreOption)]
    assert len(options) > 100
    for option in options:
        sample = samples.get(type(option.default))
        if sample is not None and not (isinstance(option.default, str) and "one_of" in repr(option.options[0].parse)):
            assert type(option.options[0].read(sample)) is type(option.default), option.key


def test_values_are_read_in_paimons_notation() -> None:
    o = CoreOptions(
        {
            "manifest.target-file-size": "2 mb",
            "commit.max-retry-wait": "5 s",
            "sequence.field": " a, b ",
            "merge-engine": "PARTIAL_UPDATE",
            "file.format.per.level": "0:avro,3:orc",
            "write.compaction-skip": "true",
            "my.option": "kept",
        }
    )
    assert (o.manifest_target_file_size, o.commit_max_retry_wait_ms) == (2 * MB, 5000)
    assert (o.sequence_field, o.merge_engine) == (("a", "b"), "partial-update")
    assert o.file_format_per_level == {0: "avro", 3: "orc"}
    assert o.write_only is True, "by its older key"
    assert o.mapping["my.option"] == "kept"
    assert o.with_overrides({"merge-engine": "first-row"}).needs_lookup


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("bucket", "many", "bucket"),
        ("merge-engine", "guess", "merge_engine"),
        ("write-only", "perhaps", "write_only"),
        ("snapshot.time-retained", "soon", "snapshot_time_retained_ms"),
        ("manifest.target-file-size", "big", "manifest_target_file_size"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_by_its_key(key: str, value: str, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"option '{key}': '{value}' is not"):
        getattr(CoreOptions({key: value}), name)


def test_a_value_is_read_once_for_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    o, plain = CoreOptions({"bucket": "4", "write-only": "maybe"}), Option.read
    read: list[str] = []

    def noted(self: Option, value: Any, **more: Any) -> Any:
        read.append(self.name)
        return plain(self, value, **more)

    monkeypatch.setattr(Option, "read", noted)
    assert (o.bucket, o.bucket, o.file_format, o.file_format) == (4, 4, "parquet", "parquet")
    assert read == ["bucket"]
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            _ = o.write_only
    assert o.with_overrides({"bucket": "5"}).bucket == 5


def test_statistics_modes_are_per_column_per_level_or_for_all() -> None:
    o = CoreOptions(
        {"fields.a.stats-mode": "none", "metadata.stats-mode.per.level": "0:counts", "metadata.stats-mode": "full"}
    )
    assert (o.stats_mode_of("a", 0), o.stats_mode_of("b", 0), o.stats_mode_of("b", 5), o.stats_mode_of("b")) == (
        "none",
        "counts",
        "full",
        "full",
    )


def test_features_that_are_not_built_are_refused_by_name_unless_switched_off() -> None:
    CoreOptions({"row-tracking.enabled": "false", "bucket-function.type": "hive"}).check_supported()
    for key, value in (
        ("row-tracking.enabled", "true"),
        ("scan.fallback-branch", "b"),
        ("write-buffer-spillable", "false"),
        ("compaction.delete-ratio-threshold", "0.5"),
        ("commit.strict-mode.last-safe-snapshot", "7"),
    ):
        with pytest.raises(UnsupportedOperation, match=key):
            CoreOptions({key: value}).check_supported()


def test_changelogs_are_decoupled_only_if_they_live_longer() -> None:
    assert not CoreOptions().changelog_decoupled
    assert CoreOptions({"changelog.time-retained": "2 h"}).changelog_decoupled
    assert not CoreOptions({"changelog.time-retained": "30 min"}).changelog_decoupled


def test_every_option_of_the_class_is_read_by_some_module() -> None:
    """One that nothing reads would be accepted and have no effect: build it, or refuse it by name (`_NOT_BUILT`)."""
    source = Path(forebay.__file__).parent
    lists = {"paimon/options.py", "paimon/option_names.py", "paimon/store/schema_changes.py"}
    texts = {path.relative_to(source).as_posix(): path.read_text() for path in source.rglob("*.py")}
    by_key = "\n".join(text for name, text in texts.items() if name not in lists)
    attributes = set(re.findall(r"\.(\w+)", "\n".join(texts.values())))
    unread = [
        option.key
        for name, option in vars(CoreOptions).items()
        if isinstance(option, CoreOption) and name not in attributes and f'"{option.key}"' not in by_key
    ]
    assert unread == []


def test_options_that_change_nothing_still_have_values_of_theirs() -> None:
    CoreOptions({"read.batch-size": "512", "consumer.mode": "at_least_once"}).check_values()
    for option in _WITHOUT_EFFECT:
        with pytest.raises(InvalidRequest, match=f"option '{option.name}': 'some' is not"):
            CoreOptions({option.name: "some"}).check_values()


def test_every_option_that_is_read_here_is_known_by_name() -> None:
    declared = [v for v in vars(CoreOptions).values() if isinstance(v, CoreOption)]
    named = {key for option in declared for key in (option.key, *option.fallback)} | set(_NOT_BUILT)
    named |= {option.name for option in _WITHOUT_EFFECT}
    assert named - KNOWN == set()
    for name in sorted(named):
        check_spelling(name)


@pytest.mark.parametrize("name", ["bukket", "Bucket", "write_only", "snapshot.num-retained-min", "merge.engine"])
def test_slips_are_distinguished_from_options_of_others(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"there is no option '{name}'; did you mean"):
        check_spelling(name)


@pytest.mark.parametrize("name", ["owner", "provider", "comment", "fields.buket.stats-mode", "connector", "team.cost"])
def test_options_of_others_are_no_slips(name: str) -> None:
    check_spelling(name)
