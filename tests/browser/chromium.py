"""Chromium, headless, used as a person uses it: found by role and name, clicked, typed into.

Speaks the DevTools protocol over a pipe, so that no port is opened and nothing else is installed.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time

SECONDS = 60
"""Longest wait for anything, on a loaded machine."""

KEYS = {
    "Enter": ("\r", 13),
    " ": (" ", 32),
    "Escape": ("", 27),
    "Tab": ("", 9),
    "End": ("", 35),
    "Home": ("", 36),
    "PageDown": ("", 34),
    "ArrowLeft": ("", 37),
    "ArrowUp": ("", 38),
    "ArrowRight": ("", 39),
    "ArrowDown": ("", 40),
}


class Chromium:
    """A browser with a profile of its own in a folder; a context manager.

    Args:
        folder: For the profile and for what is downloaded.
    """

    def __init__(self, folder):
        program = shutil.which("chromium") or shutil.which("google-chrome")
        assert program, "this needs Chromium: apt-get install chromium"
        self.folder = folder
        theirs, self._write = os.pipe()
        self._read, other = os.pipe()
        # Numbers that cannot be in each other's way when they become 3 and 4.
        theirs, other = (fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (theirs, other))

        def connect():
            os.dup2(theirs, 3)
            os.dup2(other, 4)

        self._process = subprocess.Popen(
            [
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--remote-debugging-pipe",
                f"--user-data-dir={folder}",
            ],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (theirs, other):
            os.close(end)
        self._numbers = itertools.count(1)
        self._rest = b""
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.call("Browser.close")
        self._process.wait(SECONDS)
        for end in (self._write, self._read):
            os.close(end)

    def call(self, method, session=None, **params):
        """Calls a method of the protocol; returns its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _receive(self):
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], SECONDS)
            assert ready, "Chromium says nothing"
            some = os.read(self._read, 1 << 20)
            assert some, "Chromium has ended"
            self._rest += some
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def wait_for(self, file):
        """Waits until a file has been downloaded."""
        end = time.monotonic() + SECONDS
        while not file.exists() or not file.stat().st_size:
            assert time.monotonic() < end, f"'{file.name}' was never downloaded"
            time.sleep(0.02)

    def open(self, url, width=1200, height=900, dark=False):
        """Opens a page in a window of that size."""
        return Page(self, url, width, height, dark)


class Page:
    """An open page. What goes wrong in it, and what it asks the network for, is an error."""

    def __init__(self, browser, url, width, height, dark):
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM", "Accessibility"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        browser.call(
            "Browser.setDownloadBehavior", behavior="allow", downloadPath=str(browser.folder)
        )
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def call(self, method, **params):
        """Calls a method of the protocol for this page."""
        return self._browser.call(method, self._session, **params)

    def evaluate(self, expression):
        """The value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition):
        """Waits until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.02)

    def faults(self):
        """Errors in the page, and addresses that it asked for."""
        own = [e for e in self._browser.events if e.get("sessionId") == self._session]
        told = [e["params"] for e in own if e["method"] == "Runtime.exceptionThrown"]
        told += [e["params"]["entry"]["text"] for e in own if e["method"] == "Log.entryAdded"]
        requests = [e["params"] for e in own if e["method"] == "Network.requestWillBeSent"]
        urls = [one["request"]["url"] for one in requests]
        return told + [url for url in urls if not url.startswith(("file:", "blob:"))]

    def close(self):
        """Closes the page, which must have done no wrong."""
        faults = self.faults()
        self._browser.call("Target.closeTarget", targetId=self._target)
        assert not faults, faults

    # ------------------------------------------------------------------ what a person does

    def named(self, role, name=None):
        """What assistive technology finds under a role and a name, by number."""
        root = self.call("DOM.getDocument")["root"]["backendNodeId"]
        asked = {"role": role} | ({} if name is None else {"accessibleName": name})
        found = self.call("Accessibility.queryAXTree", backendNodeId=root, **asked)["nodes"]
        return [one["backendDOMNodeId"] for one in found if not one["ignored"]]

    def find(self, role, name=None):
        """The one thing of a role and a name."""
        found = self.named(role, name)
        assert found, f"no {role} {name!r} in the page"
        return found[0]

    def middle(self, node):
        """Where a thing is, once it is in sight."""
        self.call("DOM.scrollIntoViewIfNeeded", backendNodeId=node)
        corners = self.call("DOM.getContentQuads", backendNodeId=node)["quads"][0]
        return sum(corners[::2]) / 4, sum(corners[1::2]) / 4

    def click(self, role, name=None):
        """Clicks on the middle of a thing."""
        self.click_at(*self.middle(self.find(role, name)))

    def click_at(self, x, y):
        """Clicks on a place in the window."""
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", buttons=1, clickCount=1)

    def mouse(self, kind, x, y, **rest):
        """One event of the mouse."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **rest)

    def focus(self, role, name=None):
        """Puts the focus on a thing."""
        self.call("DOM.focus", backendNodeId=self.find(role, name))

    def press(self, key, times=1):
        """Presses a key."""
        text, code = KEYS.get(key, (key, ord(key[0].upper())))
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                self.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    text=text if kind == "keyDown" else "",
                    windowsVirtualKeyCode=code,
                )

    def type(self, text, role, name=None):
        """Types into a field."""
        self.focus(role, name)
        self.call("Input.insertText", text=text)

    def choose(self, option, name):
        """Chooses an option of a list, by typing its name as a keyboard does."""
        self.focus("combobox", name)
        for letter in option:
            self.press(letter)

    # ------------------------------------------------------------------ what a person sees

    def text(self, selector):
        """The text of the first element."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")

    def texts(self, selector):
        """The texts of all elements in sight."""
        return self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            ".filter(one => one.offsetParent || one.getClientRects().length)"
            ".map(one => one.textContent)"
        )
