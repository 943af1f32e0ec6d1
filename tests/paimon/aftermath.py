"""What must hold of a table after an operation on it failed, or its process died, at any step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from forebay.paimon.table import Table
from tests.paimon.kill_acts import ACTS, NEW_DAY
from tests.paimon.lake import at_ms, put
from tests.paimon.maintain.lakes import FAST, NOW, files_of, open_table, referenced, rows


def write_one_more(table: Table) -> tuple[Any, ...]:
    if table.schema.partition_keys:
        put(table, [{"day": NEW_DAY, "id": 777}])
        return NEW_DAY, 777
    put(table, [{"id": 777, "v": 7}])
    return 777, 7


def check(root: Path, act: str, step: str, kept: dict[int, Any]) -> None:
    where = f"{act}, {step}"
    table = open_table(root)
    there = rows(table)
    assert there in ACTS[act].states, where
    for snapshot_id, expected in kept.items():
        assert rows(table, as_of=snapshot_id) == expected, where
    for tag in table.context.tags.tags():
        rows(table, as_of=tag.name)
    check_orphans(root, where)
    assert rows(open_table(root)) == there, where
    if ACTS[act].again:
        ACTS[act].run(open_table(root))
        there = rows(open_table(root))
        assert there in ACTS[act].states, where
    one = write_one_more(open_table(root))
    assert rows(open_table(root)) == sorted([*there, one]), where
    settle(open_table(root))
    assert rows(open_table(root)) == sorted([*there, one]), where
    assert files_of(root) == referenced(root), where


def check_orphans(root: Path, where: str) -> None:
    """A dry run lists exactly what nothing mentions, and a real one deletes just that."""
    known = named(root)
    on_disk = files_of(root)
    expected = {f for f in on_disk if f.rpartition("/")[2] not in known and is_removable(f)}
    dry = open_table(root).remove_orphan_files(older_than=at_ms(NOW), dry_run=True)
    assert {p.removeprefix(f"{root}/") for p in dry.files} == expected, where
    done = open_table(root).remove_orphan_files(older_than=at_ms(NOW))
    assert done.files == dry.files, where
    assert files_of(root) == on_disk - expected, where


def is_removable(file: str) -> bool:
    """Snapshots, tags and schemas refer to files; nothing refers to them."""
    return not any(file.startswith(d) for d in ("schema/", "snapshot/snapshot-", "tag/", "changelog/changelog-"))


def settle(table: Table) -> None:
    """Compact all, keep the last snapshot alone, and remove what is left over."""
    table.compact(full=True)
    table.new_commit().compact_manifests()
    for name in table.context.tags.names():
        table.delete_tag(name)
    table.expire_snapshots(1, 1)
    if table.context.options.changelog_decoupled:
        table.maintenance().expire_changelogs(retain_min=1, retain_max=1)
    table.remove_orphan_files(older_than=at_ms(NOW))


def named(root: Path | str) -> set[str]:
    """The names of all files that any snapshot, long-lived changelog or tag mentions, if only as deleted."""
    table = open_table(root)
    branch = replace(table.context, io=FAST)
    # A tag does not keep the changelog of its snapshot.
    tagged = [replace(s, changelog_manifest_list=None) for s in branch.tags.tagged_snapshots()]
    snapshots = [*table.context.snapshots.snapshots(), *tagged]
    logs = branch.snapshots.changelogs
    snapshots += [branch.snapshots.changelog(i) for i in logs.ids()]
    found: set[str] = set()
    for s in snapshots:
        lists = {s.base_manifest_list, s.delta_manifest_list, s.changelog_manifest_list} - {None}
        found |= {name for name in lists if name} | {name for name in (s.index_manifest, s.statistics) if name}
        if s.index_manifest and FAST.exists(table.context.paths.manifest(s.index_manifest)):
            found |= {e.index_file.file_name for e in table.context.manifests.read_index(s.index_manifest)}
        for name in lists:
            if not name or not FAST.exists(table.context.paths.manifest(name)):
                continue  # of an expiry that was killed
            for manifest in table.context.manifests.read_list(name):
                found.add(manifest.file_name)
                if FAST.exists(table.context.paths.manifest(manifest.file_name)):
                    for e in table.context.manifests.read(manifest.file_name):
                        found.update((e.file.file_name, *e.file.extra_files))
    return found
