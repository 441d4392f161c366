"""A real Chromium, spoken to over a pipe in its own protocol (DevTools). It dies with the test."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DEADLINE_S = 90.0


class Browser:
    """One page in a browser without a window. ``requests`` are the addresses it asked for, ``complaints`` what its
    console said that it should not have: errors, warnings, exceptions."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 900) -> None:
        assert CHROMIUM is not None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._number, self._rest = 0, b""
        self._answers: dict[int, dict[str, Any]] = {}
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-extensions", "--disable-background-networking", "--disable-component-update",
            "--hide-scrollbars", f"--user-data-dir={profile}", f"--window-size={width},{height}",
            "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        # The protocol is spoken over descriptors 3 and 4.
        shell = f'exec "$@" 3<&{their_in} 4>&{their_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "chromium", *command], pass_fds=(their_in, their_out), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(their_in)
        os.close(their_out)
        self._session = ""
        target = next(t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self._out, data) :]
        deadline = time.monotonic() + DEADLINE_S
        while self._number not in self._answers:
            self._hear(deadline)
        answer = self._answers.pop(self._number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _hear(self, deadline: float) -> None:
        """Take in what has come, or wait for it."""
        ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"Chromium said nothing for {DEADLINE_S} s"
        data = os.read(self._in, 1 << 20)
        assert data, "Chromium is gone"
        *messages, self._rest = (self._rest + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._note(message["method"], message["params"])

    def _note(self, event: str, facts: dict[str, Any]) -> None:
        match event:
            case "Network.requestWillBeSent":
                self.requests.append(facts["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(facts["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if facts["type"] in ("error", "warning", "assert"):
                self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in facts["args"]))
            case "Log.entryAdded" if facts["entry"]["level"] in ("error", "warning"):
                self.complaints.append(facts["entry"]["text"])

    def open(self, page: Path) -> None:
        """Load a page, and wait until its plots are drawn."""
        self("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("['drawn', 'failed'].includes(document.documentElement.dataset.plots)")
        assert self.value("document.documentElement.dataset.plots") == "drawn", self.complaints

    def value(self, expression: str) -> Any:
        """What JavaScript says; a promise is waited for."""
        said = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until it is true in the page, asked at every frame that it draws."""
        deadline = time.monotonic() + DEADLINE_S
        frame = "new Promise(done => setTimeout(() => done(Boolean(%s)), 20))"
        while not self.value(frame % condition):
            assert time.monotonic() < deadline, f"never true: {condition}; {self.complaints}"

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Set the size of the window, the scheme, and the medium."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self, path: Path) -> None:
        """The page as it is printed on A4."""
        path.write_bytes(
            base64.b64decode(self("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)["data"])
        )

    def press(self, key: str) -> None:
        """A key on the keyboard, as Enter."""
        codes = {"Enter": (13, "\r"), "Tab": (9, ""), " ": (32, " ")}
        code, text = codes[key]
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text)

    def close(self) -> None:
        """End the browser and all of its processes."""
        os.close(self._out)  # it leaves when nobody speaks to it any more
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait(timeout=10)
        os.close(self._in)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
