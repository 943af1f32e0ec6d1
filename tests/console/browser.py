"""A headless Chromium, driven by chromedriver's own protocol (W3C WebDriver, JSON over HTTP): no package is needed."""

from __future__ import annotations

import base64
import json
import re
import shutil
import struct
import subprocess
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.patience import PATIENCE

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
)  # fmt: skip
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Control": "\ue009", "Tab": "\ue004"}


def missing() -> str | None:
    """What this machine lacks for a browser; None if it has all."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None or shutil.which("chromedriver") is None:
        return "there is no Chromium with its chromedriver (Debian: apt install chromium chromium-driver)"
    return None


class Browser:
    """A page."""

    def __init__(self, driver: str, session: str) -> None:
        self._url = f"{driver}/session/{session}"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return _call(method, f"{self._url}{path}", body)

    def open(self, url: str) -> None:
        self.call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a function's body; a promise is awaited."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def cdp(self, command: str, **parameters: Any) -> Any:
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def shape(self, width: int, height: int, *, dark: bool) -> None:
        """The size of the page, and what it thinks the user's system wants."""
        self.cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        wish = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", features=[wish])

    def find(self, selector: str) -> str:
        """The element, once it is there."""
        script = "return document.querySelector(arguments[0])"
        found = self.until(lambda: self.run(script, selector), f"no {selector}")
        return str(found[_ELEMENT])

    def click(self, selector: str) -> None:
        self.call("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self.call("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Keys one after the other; "Control+Enter" together."""
        actions = []
        for key in keys:
            parts = [KEYS.get(part, part) for part in key.split("+")]
            actions += [{"type": "keyDown", "value": part} for part in parts]
            actions += [{"type": "keyUp", "value": part} for part in reversed(parts)]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def until(self, met: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + PATIENCE
        while not (value := met()):
            assert time.monotonic() < end, f"{what} in:\n{self.text()}"
            time.sleep(0.05)
        return value

    def until_shown(self, *texts: str) -> None:
        for text in texts:
            self.until(lambda text=text: text in self.text(), f"no {text!r}")

    def until_settled(self) -> None:
        busy = 'return !document.querySelector("[aria-label=Loading], .progress") && !!document.querySelector("h1")'
        self.until(lambda: self.run(busy), "it does not settle")

    def errors(self) -> list[str]:
        """What the page has complained about since the last call."""
        entries = self.call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def picture(self, path: Path) -> None:
        path.write_bytes(small_png(base64.b64decode(self.call("GET", "/screenshot"))))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in `folder`."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )  # fmt: skip
    assert driver.stdout is not None
    try:
        url = None
        for line in driver.stdout:
            found = re.search(r"on port (\d+)", line)
            if found is not None and found[1] != "0":
                url = f"http://127.0.0.1:{found[1]}"
                break
        assert url is not None, "chromedriver did not start"
        options = {"args": [*FLAGS, f"--user-data-dir={folder}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = _call("POST", f"{url}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        try:
            yield Browser(url, session)
        finally:
            _call("DELETE", f"{url}/session/{session}")
    finally:
        driver.terminate()
        driver.wait()
        driver.stdout.close()


def _call(method: str, url: str, body: Any = None) -> Any:
    data = None if method == "GET" or method == "DELETE" else json.dumps(body or {}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as e:
        with e:
            found = json.load(e)["value"]
        raise AssertionError(f"{found['error']}: {found['message']}") from None


# ---- pictures -------------------------------------------------------------------------------------------------------


def small_png(data: bytes) -> bytes:
    """A picture of a page with at most 256 colours: a fifth of the bytes, and the eye sees no difference."""
    pixels = _pixels(data)
    height, width, _ = pixels.shape
    packed = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colours, places, counts = np.unique(packed, return_inverse=True, return_counts=True)
    kept = colours[np.argsort(-counts)[:256]]
    parts = [(each[:, None] >> np.array([16, 8, 0]) & 255).astype(np.int32) for each in (colours, kept)]
    nearest = np.abs(parts[0][:, None, :] - parts[1][None, :, :]).sum(axis=2).argmin(axis=1).astype(np.uint8)
    rows = nearest[places.reshape(height, width)]
    content = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header), (b"PLTE", parts[1].astype(np.uint8).tobytes()), (b"IDAT", zlib.compress(content, 9)),
        (b"IEND", b""),
    )  # fmt: skip
    return _PNG + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


_PNG = b"\x89PNG\r\n\x1a\n"


def _pixels(data: bytes) -> Any:
    """The colours of a PNG of 8 bits without interlacing, without its transparency."""
    assert data.startswith(_PNG)
    position, parts, width, height, depth = len(_PNG), list[bytes](), 0, 0, 0
    while position < len(data):
        size, kind = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + size]
        if kind == b"IHDR":
            width, height, bits, colours, *_ = struct.unpack(">IIBBBBB", body)
            assert bits == 8
            depth = {2: 3, 6: 4}[colours]
        elif kind == b"IDAT":
            parts.append(body)
        position += size + 12
    raw = np.frombuffer(zlib.decompress(b"".join(parts)), np.uint8).reshape(height, 1 + width * depth)
    found = np.zeros((height, width * depth), np.uint8)
    above = np.zeros(width * depth, np.uint8)
    for y in range(height):
        above = found[y] = _unfiltered(int(raw[y, 0]), raw[y, 1:], above, depth)
    return found.reshape(height, width, depth)[:, :, :3]


def _unfiltered(kind: int, row: Any, above: Any, depth: int) -> Any:
    if kind == 0:
        return row
    if kind == 1:
        return row.reshape(-1, depth).cumsum(axis=0, dtype=np.uint8).reshape(-1)
    if kind == 2:
        return row + above
    line, up, out = row.tolist(), above.tolist(), [0] * len(row)
    for i in range(len(line)):
        left, corner = (out[i - depth], up[i - depth]) if i >= depth else (0, 0)
        if kind == 3:
            guess = (left + up[i]) // 2
        else:
            p = left + up[i] - corner
            a, b, c = abs(p - left), abs(p - up[i]), abs(p - corner)
            guess = left if a <= b and a <= c else up[i] if b <= c else corner
        out[i] = (line[i] + guess) & 255
    return np.array(out, np.uint8)
