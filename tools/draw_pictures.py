"""Draws the pictures of docs/concepts.md into docs/pictures: `python tools/draw_pictures.py`.

Each is made twice, for light and for dark pages. A label that does not fit into its box, and labels that overlap, are
errors. tests/docs compares the files with what this script draws.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
WIDTH = 760
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
SIZE = 13

THEMES = {
    "light": {
        "page": "#ffffff", "text": "#1f2933", "quiet": "#5f6c7b", "line": "#7b8794",
        "stream": "#d5efe9", "lake": "#d9e6f8", "work": "#fdecc8", "plain": "#eef1f4", "gone": "#f7d6d3",
    },
    "dark": {
        "page": "#14181d", "text": "#e6eaee", "quiet": "#9aa7b4", "line": "#7f8c99",
        "stream": "#1d4a43", "lake": "#22406b", "work": "#5c4514", "plain": "#2a3138", "gone": "#642b27",
    },
}  # fmt: skip


class Drawing:
    """A picture under way: boxes, labels and arrows, in the colours of a theme."""

    def __init__(self, height: int, title: str, theme: str) -> None:
        self.height, self.title, self.colours = height, title, THEMES[theme]
        self.parts: list[str] = []
        self.labels: list[tuple[float, float, float, float, str]] = []

    def box(
        self, x: float, y: float, w: float, h: float, label: str, kind: str = "plain", note: str = "", top: bool = False
    ) -> None:
        """A box with a label in its middle, or at its top if it holds other boxes, and a note under the label."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6" fill="{self.colours[kind]}" '
            f'stroke="{self.colours["line"]}"/>'
        )
        for text in (label, note):
            if text and _width(text, SIZE if text == label else SIZE - 2) > w - 6:
                raise ValueError(f"'{text}' does not fit into a box of {w:g}")
        middle = y + 18 if top else y + h / 2 + (4.5 if not note else -3)
        if label:
            self.text(x + w / 2, middle, label, "middle")
        if note:
            self.text(x + w / 2, middle + 16, note, "middle", quiet=True)

    def text(self, x: float, y: float, text: str, anchor: str = "start", *, quiet: bool = False) -> None:
        """A label; `x` is its start, middle or end."""
        size = SIZE - 2 if quiet else SIZE
        width = _width(text, size)
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        box = (left, y - size * 0.8, left + width, y + size * 0.25, text)
        if left < 0 or left + width > WIDTH or y > self.height:
            raise ValueError(f"'{text}' leaves the picture")
        for other in self.labels:
            if box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]:
                raise ValueError(f"'{text}' overlaps '{other[4]}'")
        self.labels.append(box)
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{self.colours["quiet" if quiet else "text"]}">{escape(text)}</text>'
        )

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """An arrow through points."""
        path = " ".join(f"{'L' if place else 'M'}{x:g} {y:g}" for place, (x, y) in enumerate(points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{self.colours["line"]}" stroke-width="1.5"{dash} '
            'marker-end="url(#head)"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A dashed line without a head, which separates."""
        self.parts.append(
            f'<path d="M{x1:g} {y1:g} L{x2:g} {y2:g}" stroke="{self.colours["quiet"]}" stroke-dasharray="2 4"/>'
        )

    def svg(self) -> str:
        """The file's text."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
            f'height="{self.height}" font-family="{escape(FONT)}" role="img">\n<title>{escape(self.title)}</title>\n'
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{self.colours["line"]}"/></marker></defs>\n'
            f'<rect width="{WIDTH}" height="{self.height}" rx="8" fill="{self.colours["page"]}"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


def _width(text: str, size: int) -> float:
    """About how wide a text is: wide fonts need this much."""
    narrow = sum(character in "iljtf.,:'|()I " for character in text)
    return (len(text) - narrow) * size * 0.61 + narrow * size * 0.36


def overview(d: Drawing) -> None:
    """Writers, the stream, tiering, the lake, and a union read over both."""
    d.text(66, 26, "writers", "middle", quiet=True)
    for place, name in enumerate(("Python", "Spark", "Fluss clients")):
        d.box(12, 40 + place * 44, 108, 34, name)
        d.arrow((120, 57 + place * 44), (170, 101))
    d.box(172, 36, 226, 130, "Forebay server: the stream", "stream", top=True)
    d.box(188, 66, 194, 38, "logs", "page", "each record, in order")
    d.box(188, 114, 194, 38, "state", "page", "the current row of each key")
    d.arrow((398, 101), (500, 101))
    d.text(449, 92, "tiering", "middle")
    d.text(449, 120, "in rounds", "middle", quiet=True)
    d.box(502, 36, 246, 130, "Paimon or Iceberg: the lake", "lake", top=True)
    d.box(518, 66, 214, 38, "snapshots", "page", "each a complete table")
    d.box(518, 114, 214, 38, "files", "page", "Parquet, in a directory or S3")
    d.box(252, 206, 416, 46, "union read", "work", "history from the lake, newer rows from the stream, each row once")
    d.arrow((285, 166), (285, 204))
    d.arrow((625, 166), (625, 204))
    d.arrow((460, 252), (460, 282))
    d.text(460, 300, "Python, Spark SQL, pandas, Polars, DuckDB", "middle")


def stream(d: Drawing) -> None:
    """A primary-key table with two buckets: logs with offsets, and the state that follows from them."""
    d.box(8, 92, 156, 44, "upsert, delete", note="keys choose the bucket")
    d.arrow((164, 104), (188, 62))
    d.arrow((164, 124), (188, 170))
    rows = {
        "bucket 0": (40, ("+I 1 tea", "+I 3 cup", "-U 1 tea", "+U 1 tin"), ("1 tin", "3 cup")),
        "bucket 1": (156, ("+I 2 pot", "-D 2 pot", "+I 4 rum"), ("4 rum",)),
    }
    for name, (y, records, state) in rows.items():
        d.text(190, y - 8, f"{name}: changelog", quiet=True)
        for place, record in enumerate(records):
            d.box(190 + place * 82, y, 78, 34, record, "stream")
            d.text(229 + place * 82, y + 50, f"offset {place}", "middle", quiet=True)
        d.arrow((190 + len(records) * 82, y + 17), (600, y + 17))
        d.text(606, y - 8, f"{name}: state", quiet=True)
        for place, row in enumerate(state):
            d.box(606 + place * 72, y, 68, 34, row, "work")
    d.text(380, 238, "changes(...): the records from an offset on", "middle", quiet=True)
    d.text(676, 238, "lookup(...), scan(...)", "middle", quiet=True)


def lake(d: Drawing) -> None:
    """Snapshots of a lake table, their files, and what a commit and a compaction change."""
    columns = {
        "snapshot 1": (20, "append", ("a", "b")),
        "snapshot 2": (270, "append", ("a", "b", "c")),
        "snapshot 3": (520, "compaction", ("d",)),
    }
    for name, (x, what, _) in columns.items():
        d.box(x, 20, 220, 46, name, "lake", what)
    d.arrow((240, 43), (268, 43))
    d.arrow((490, 43), (518, 43))
    places = {"a": 60, "b": 190, "c": 380, "d": 590}
    notes = {"a": "1 tea, 3 cup", "b": "2 pot, 4 rum", "c": "1 tin, 2 deleted", "d": "1 tin, 3 cup, 4 rum"}
    for file, x in places.items():
        width = {"a": 110, "b": 110, "c": 120, "d": 140}[file]
        d.box(x, 150, width, 48, f"file {file}", "plain", notes[file])
    for x, _, files in columns.values():
        for file in files:
            width = {"a": 110, "b": 110, "c": 120, "d": 140}[file]
            d.arrow((x + 110, 66), (places[file] + width / 2, 148), dashed=file in "ab" and x > 200)
    d.text(380, 224, "Files never change. A commit adds a snapshot that names the files of the whole table.", "middle")
    d.text(380, 246, "Readers of snapshot 2 keep reading a, b and c while snapshot 3 is there.", "middle", quiet=True)


def union(d: Drawing) -> None:
    """A lake snapshot that has a log up to an offset, the log, and the rows of the union read."""
    d.text(20, 30, "the log of a bucket", quiet=True)
    records = ("+I 1 tea", "+I 2 pot", "+I 3 cup", "-U 1 tea", "+U 1 tin", "-D 2 pot", "+I 4 rum")
    for place, record in enumerate(records):
        d.box(20 + place * 92, 40, 88, 34, record, "plain" if place < 3 else "stream")
        d.text(64 + place * 92, 90, f"offset {place}", "middle", quiet=True)
    d.line(294, 24, 294, 196)
    d.text(286, 116, "in the lake: offsets below 3", "end")
    d.text(302, 116, "only in the log: offsets 3 to 6")
    d.box(20, 130, 258, 56, "lake snapshot 8", "lake", "1 tea,   2 pot,   3 cup")
    d.box(310, 130, 350, 56, "newest change of each key", "stream", "1 is tin,   2 is deleted,   4 is rum")
    d.arrow((149, 186), (300, 222))
    d.arrow((485, 186), (410, 222))
    d.box(220, 224, 280, 52, "union read", "work", "1 tin,   3 cup,   4 rum")
    d.text(20, 246, "Keys that the log has", quiet=True)
    d.text(20, 262, "override the lake's rows.", quiet=True)


def round_(d: Drawing) -> None:
    """The steps of a tiering round, and who takes them."""
    for place, name in enumerate(("server", "workers", "lake")):
        y = 40 + place * 82
        d.text(14, y + 28, name, quiet=True)
        d.line(70, y + 64, 748, y + 64) if place < 2 else None
    steps = (
        (76, 0, "1 plan", "offsets 3 to 6", "stream"),
        (212, 1, "2 write", "files of each bucket", "work"),
        (348, 0, "3 save", "the new offsets: 7", "stream"),
        (484, 2, "4 commit", "one new snapshot", "lake"),
        (620, 0, "5 report", "reads start there", "stream"),
    )
    for x, lane, name, note, kind in steps:
        d.box(x, 40 + lane * 82, 124, 48, name, kind, note)
    d.arrow((200, 64), (274, 64), (274, 120))
    d.arrow((336, 146), (410, 146), (410, 90))
    d.arrow((472, 64), (546, 64), (546, 202))
    d.arrow((608, 228), (682, 228), (682, 90))
    d.text(
        376, 282, "A crash before step 4 leaves nothing visible. After it, the next round finds the snapshot,", "middle"
    )
    d.text(
        376, 302, "and reports it. The lake refuses a commit on any other base, so no record is taken twice.", "middle"
    )


def transaction(d: Drawing) -> None:
    """Tasks stage rows for two tables; one commit record makes them visible."""
    d.box(14, 96, 106, 48, "driver", note="version 17")
    for place, (name, note, kind) in enumerate(
        (("task 0", "counts", "work"), ("task 1", "failed attempt", "gone"), ("task 1 again", "counts", "work"))
    ):
        y = 30 + place * 66
        d.box(170, y, 120, 44, name, "plain")
        d.arrow((120, 120), (168, y + 22))
        d.box(340, y, 122, 44, "staged rows", kind, note)
        d.arrow((290, y + 22), (338, y + 22))
    d.box(512, 84, 90, 72, "commit", "stream", "one record")
    d.arrow((462, 52), (510, 104))
    d.arrow((462, 184), (510, 136))
    d.box(652, 40, 96, 44, "events", "stream", "2 rows more")
    d.box(652, 156, 96, 44, "orders", "stream", "1 row changed")
    d.arrow((602, 104), (650, 62))
    d.arrow((602, 136), (650, 178))
    d.text(231, 240, "no reader sees these rows", "middle", quiet=True)
    d.text(650, 240, "all of them, once", "middle", quiet=True)


PICTURES: dict[str, tuple[Callable[[Drawing], None], int, str]] = {
    "overview": (overview, 316, "Writers, a stream, a lake, and a union read over both"),
    "stream": (stream, 256, "A primary-key table: the changelog of each bucket, and the state that follows from it"),
    "lake": (lake, 262, "A lake table: snapshots that name files"),
    "union": (union, 292, "A union read: a lake snapshot, overridden by the log after it"),
    "round": (round_, 318, "A tiering round in five steps"),
    "transaction": (transaction, 258, "A transaction: rows are staged, and one record makes them visible"),
}


def drawn(name: str, theme: str) -> str:
    """The text of a picture's file."""
    draw, height, title = PICTURES[name]
    drawing = Drawing(height, title, theme)
    draw(drawing)
    return drawing.svg()


def main() -> int:
    """Write all pictures and return the exit code."""
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        for theme in THEMES:
            (FOLDER / f"{name}-{theme}.svg").write_text(drawn(name, theme), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
