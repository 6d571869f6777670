# SPDX-License-Identifier: Apache-2.0
#
# Drives Debian's Chromium for tests by its DevTools protocol over a pipe (messages end in NUL), with nothing but
# Python's own library: real clicks, windows of any width, and all that the console says.
#
#   with Browser(folder) as browser:
#       browser.open("http://127.0.0.1:8080/", 390, 900)
#       browser.wait("document.querySelector('button')")
#       browser.click("button")
#       browser.value("document.title"), browser.problems
import base64
import json
import os
import subprocess
import time


class Browser:
    def __init__(self, folder):
        to_browser, self.to = os.pipe()
        self.back, from_browser = os.pipe()
        self.number, self.kept, self.session, self.problems = 0, b"", None, []

        def wire():  # the browser reads from 3 and writes to 4
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.log = open(os.path.join(folder, "browser.log"), "wb")
        self.process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
             "--disable-background-networking", "--user-data-dir=" + os.path.join(folder, "profile"), "about:blank"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, preexec_fn=wire, close_fds=False)
        os.close(to_browser)
        os.close(from_browser)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.call("Browser.close")
        except (OSError, RuntimeError):
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def message(self):
        while b"\0" not in self.kept:
            got = os.read(self.back, 1 << 20)
            if not got:
                raise RuntimeError("the browser has ended")
            self.kept += got
        one, self.kept = self.kept.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **arguments):
        self.number += 1
        message = {"id": self.number, "method": method, "params": arguments}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            got = self.message()
            if got.get("id") == self.number:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']['message']}")
                return got["result"]
            self.note(got)

    def note(self, event):
        method, what = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(one.get("value", one.get("description"))) for one in what["args"]))
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.problems.append(what["entry"]["text"])

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url, width, height):
        self.size(width, height)
        self.call("Page.navigate", url=url)
        end = time.monotonic() + 60
        while True:
            try:
                if self.value("location.href !== 'about:blank' && document.readyState === 'complete'"):
                    return
            except RuntimeError:  # between the pages there is none
                pass
            if time.monotonic() > end:
                raise RuntimeError(f"not loaded within 60 s: {url}")
            time.sleep(0.05)

    def value(self, expression):
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            raise RuntimeError(f"{expression}: {got['exceptionDetails'].get('exception', {}).get('description')}")
        return got["result"].get("value")

    def wait(self, expression, seconds=60):
        """Until it is true; its value."""
        end = time.monotonic() + seconds
        while True:
            value = self.value(f"(() => {{ const it = {expression}; return it instanceof Node ? true : it; }})()")
            if value:
                return value
            if time.monotonic() > end:
                raise RuntimeError(f"not within {seconds} s: {expression}")
            time.sleep(0.1)

    def click(self, selector):
        """In the middle of the element, as a mouse does."""
        self.value(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center', inline: 'center'}})")
        box = self.value(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
                         f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def press(self, selector, key):
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def shot(self, path, whole=True):
        got = self.call("Page.captureScreenshot", captureBeyondViewport=whole,
                        **({"clip": {**self.value("({x: 0, y: 0, width: document.documentElement.clientWidth, "
                                                  "height: document.documentElement.scrollHeight})"), "scale": 1}} if whole else {}))
        with open(path, "wb") as file:
            file.write(base64.b64decode(got["data"]))
