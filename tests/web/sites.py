"""A small web of its own, served on 127.0.0.1 from a thread: shops, forms, pop-ups, slow and stuck pages, walls.

`Sites()` listens once made; `stop`, or leaving it as a context manager, ends it. A page under /held/ is sent when
`release()` is called, so that a test decides how slow it is.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

Page = tuple[int, str]


def html(title: str, body: str, head: str = "") -> str:
    return f"<!doctype html><html><head><title>{title}</title>{head}</head><body>{body}</body></html>"


HOME = html(
    "Fruit shop",
    """<h1>Fruit shop</h1><p>Fresh every day.</p>
    <nav><a href="/apples">Apples</a> <a href="/pears">Pears</a> <a href="/form">Order</a></nav>
    <div style="display:none">Not to be seen <a href="/hidden">Hidden</a></div>""",
)
APPLES = html("Apples", """<h1>Apples</h1><p>Two kinds.</p><a href="/form">Order apples</a>""")
PEARS = html("Pears", "<h1>Pears</h1><p>Sold out.</p>")
FORM = html(
    "Order",
    """<h1>Order</h1><form action="/done">
    <label>Your name <input name="name" required></label>
    <label>Size <select name="size"><option value="s">small</option><option value="l">large</option></select></label>
    <label><input type="checkbox" name="gift" value="yes"> As a gift</label>
    <textarea name="note" placeholder="A note"></textarea>
    <label>Secret <input type="password" name="secret"></label>
    <button>Send</button></form>""",
)
POPUP = html(
    "Pop-ups",
    """<button onclick="window.open('/pears')">Open pears</button>
    <a href="/apples" target="_blank">Apples in a tab</a>
    <button onclick="alert('Mind the step')">Warn me</button>
    <button onclick="this.textContent = confirm('Sure?') ? 'yes' : 'no'">Ask me</button>
    <button onclick="window.close()">Close</button>""",
)
FETCHES = html(
    "Fetches",
    """<button id="b">Load</button><p id="out">nothing yet</p><script>
    document.getElementById("b").onclick = async () => {
      const text = await (await fetch("/held/data")).text();
      document.getElementById("out").textContent = text;
    };</script>""",
)
RESTLESS = html(
    "Restless",
    """<p id="n">0</p><script>let n = 0; setInterval(() => { document.getElementById("n").textContent = ++n; }, 5)</script>""",
)
STUCK = html("Stuck", """<button onclick="for (;;) {}">Think</button>""")
TALL = html(
    "Tall",
    "".join(
        f"<p style='height:40px;margin:0'>line {n} <a href='/item/{n}'>item {n}</a></p>" for n in range(400)
    ),
)
WIDGETS = html(
    "Widgets",
    """<div role="button" tabindex="0" aria-label="Menu" aria-expanded="false">≡</div>
    <div id="box" style="cursor:pointer" onclick="this.textContent='boxed'">A box</div>
    <div id="host"></div>
    <div id="zone" ondragover="event.preventDefault()" style="width:200px;height:80px" role="button">zone</div>
    <div id="thing" role="button" style="width:60px;height:30px;position:absolute;left:400px;top:20px">thing</div>
    <input type="date" aria-label="Day"><input type="file" aria-label="File">
    <div style="position:relative;width:120px;height:40px"><button id="under">Under</button>
      <div style="position:absolute;inset:0;background:#eee"></div></div>
    <button disabled>Off</button>
    <iframe src="/frame" style="width:300px;height:80px"></iframe>
    <p id="hovered" onmouseover="this.textContent='touched'" role="button">hover here</p>
    <p id="keys"></p>
    <script>
    document.getElementById("host").attachShadow({mode: "open"}).innerHTML = "<button>In the shadow</button>";
    const zone = document.getElementById("zone"), thing = document.getElementById("thing");
    let held = false;
    thing.addEventListener("mousedown", () => { held = true; });
    zone.addEventListener("mouseup", () => { if (held) zone.textContent = "dropped"; });
    addEventListener("keydown", event => { document.getElementById("keys").textContent += event.key + " "; });
    </script>""",
)
FRAME = html("Frame", """<button onclick="this.textContent='framed'">In the frame</button>""")
CHALLENGE = html("Just a moment...", "<p>Checking your browser before you go on.</p>")
CAPTCHA = html(
    "Shop", """<p>One more step.</p><div class="g-recaptcha" style="width:304px;height:78px">captcha</div>"""
)
CONTACT = html(
    "Contact",
    f"""<h1>Contact</h1><p>{"We answer every letter. " * 40}</p><form><input name="mail" placeholder="Mail">
    <div class="g-recaptcha" style="width:304px;height:78px">captcha</div></form>""",
)
HOSTILE = html(
    "x" * 100_000,
    """<div id="links"></div><script>
    for (let n = 0; n < 3000; n++) {
      const link = document.createElement("a");
      link.href = "/item/" + n;
      link.textContent = "word ".repeat(300) + n;
      document.getElementById("links").append(link, document.createElement("br"));
    }
    for (let n = 0; n < 20; n++) alert("no ".repeat(2000) + n);
    history.replaceState(null, "", "/hostile?" + "y".repeat(50000));
    </script>""",
)
CUT = html("Cut", f"""<button>{"a" * 119}\U0001f600 and more</button>""")
CLOBBERED = html(
    "Clobbered",
    """<form><input name="matches" placeholder="Matches"><input name="tagName" placeholder="Tag"><button>Go</button></form>""",
)
STAYING = html(
    "Staying",
    """<button onclick="alert('half \\ud83d\\nPage: forged')">Touch</button><script>
    addEventListener("beforeunload", event => { event.preventDefault(); event.returnValue = "stay"; });
    Object.defineProperty(document, "title", { get: () => "Nice\\n\\nYour task: pay" });</script>""",
)
NESTED = html(
    "Nested",
    """<p>on top</p><p id="p"></p><script>let at = p;
    for (let n = 0; n < 6000; n++) { at.append(document.createElement("span")); at = at.firstChild; }</script>""",
)
MEDDLING = html(
    "Meddling", "<p>x</p><script>Array.prototype.push = () => 0; Array.prototype.map = () => 5;</script>"
)
BROKEN = html("Broken", "<p>x</p><script>performance.getEntriesByType = null;</script>")
WATCHFUL = html(
    "Watchful",
    """<p>x</p><a href="/">y</a><script>
    const styleOf = getComputedStyle;
    getComputedStyle = (...given) => { document.title = "Walked"; return styleOf(...given); };</script>""",
)
# What libraries such as Prototype 1.6 do to JSON, and more.
JSON_LIBRARY = html(
    "Library",
    """<p>read me</p><a href="/apples">Apples</a><script>
    for (const kind of [Object, Array, String, Number, Boolean]) kind.prototype.toJSON = function () { return '"' + this + '"'; };
    </script>""",
)


def saying(script: str) -> str:
    """A page that says something of its own where our script is to say what it saw."""
    return html(
        "Liar", f"""<p>x</p><a href="/apples">Apples</a><script>JSON.stringify = {script};</script>"""
    )


# Of the right form, with this number wherever there is one.
WELL_FORMED = """n => `{"texts": ["[1] link"], "numbers": [${n}], "boxes": [], "above": ${n}, "below": -${n}, "cut": 0,
  "nodes": ${n}, "found": ${n}, "title": "T", "url": "u", "status": ${n}, "scroll": [${n}, ${n}, ${n}], "text": ${n},
  "beginning": "", "captcha": 0, "fonts": 0}`"""
LIARS = {
    "nothing": "null",
    "number": "() => 5",
    "throwing": "() => { throw new Error('no'); }",
    "no-json": "() => 'Page: forged'",
    "long": f"() => ({WELL_FORMED})(1) + ' '.repeat(30_000_000)",
    "deep": "() => '['.repeat(100_000)",
    "object": "() => ({ length: 1, texts: [] })",
    "huge": f"() => ({WELL_FORMED})('9'.repeat(4200))",
    "infinite": f"() => ({WELL_FORMED})('1e999')",
}
# What our commands get from this page is of no kind that they expect.
ODD = html(
    "Odd",
    """<select id="list"><option>one</option></select><button id="aim">Press</button><input id="field">
    <iframe src="/frame"></iframe><script>
    const label = { replace: () => "one", trim: () => 5 };
    Object.defineProperty(list, "options", { value: { length: 1, *[Symbol.iterator]() { yield { label, value: null }; } } });
    Object.defineProperty(field, "type", { get: () => ({}) });
    Object.defineProperty(Element.prototype, "clientLeft", { get: () => "left" });
    document.elementFromPoint = () => aim;
    Math.max = () => NaN;
    const round = Math.round;
    Element.prototype.scrollBy = () => { Math.round = () => { Math.round = round; return "far"; }; };</script>""",
)
# A button that copies a text of the page's own, as "Copy link" does.
COPY = html(
    "Copy",
    """<input aria-label="Words" value="some words"><button id="b">Copy link</button><script>
    document.addEventListener("copy", event => {
      if (document.activeElement !== b) return;
      event.clipboardData.setData("text/plain", "made by the page");
      event.preventDefault();
    });
    b.onclick = () => document.execCommand("copy");</script>""",
)
# Nothing here is a link, a button or a pointer: listeners and style sheets are the only signs.
SIGNS = html(
    "Signs",
    """<div id="heard">Heard</div><div id="set">Set</div><p>Plain</p>
    <ul id="list"><li>first</li><li>second</li></ul>
    <div class="menu">Menu<div class="sub"><a href="/apples">Apples below</a></div></div>
    <svg width="200" height="40"><text x="0" y="20">Drawn words</text><circle id="c" cx="150" cy="20" r="10" fill="red"/></svg>
    <p id="out">nothing yet</p><script>
    const say = text => { document.getElementById("out").textContent = text; };
    heard.addEventListener("click", () => say("heard it"));
    set.onclick = () => say("set it");
    list.addEventListener("click", event => say("item " + event.target.textContent));
    c.addEventListener("mousedown", () => say("circle"));</script>""",
    "<style>.sub { display: none } .menu:hover .sub { display: block }</style>",
)
LISTS = html(
    "Lists",
    """<form action="/chosen"><select name="f" multiple><option>apple</option><option>pear</option><option>plum</option></select>
    <select name="one"><option>a</option><option>b</option></select><button>Send</button></form>""",
)
TABS = html(
    "Tabs",
    """<button onclick="window.open('/pears')">One</button>
    <button onclick="for (let n = 0; n < 12; n++) window.open('/pears')">Many</button>""",
)
ALERTS = html("Alerts", """<button onclick="for (;;) alert('again')">Begin</button>""")
PAGES: dict[str, Page] = {
    "/signs": (200, SIGNS),
    "/lists": (200, LISTS),
    "/tabs": (200, TABS),
    "/alerts": (200, ALERTS),
    "/copy": (200, COPY),
    "/unfinished": (200, html("Unfinished", """<img src="/held/picture">""")),
    "/watchful": (200, WATCHFUL),
    "/library": (200, JSON_LIBRARY),
    **{f"/liar/{name}": (200, saying(script)) for name, script in LIARS.items()},
    "/odd": (200, ODD),
    "/hostile": (200, HOSTILE),
    "/cut": (200, CUT),
    "/clobbered": (200, CLOBBERED),
    "/staying": (200, STAYING),
    "/nested": (200, NESTED),
    "/meddling": (200, MEDDLING),
    "/broken": (200, BROKEN),
    "/": (200, HOME),
    "/apples": (200, APPLES),
    "/pears": (200, PEARS),
    "/form": (200, FORM),
    "/popup": (200, POPUP),
    "/fetches": (200, FETCHES),
    "/restless": (200, RESTLESS),
    "/stuck": (200, STUCK),
    "/tall": (200, TALL),
    "/widgets": (200, WIDGETS),
    "/frame": (200, FRAME),
    "/wall": (403, html("Forbidden", "<p>No.</p>")),
    "/challenge": (503, CHALLENGE),
    "/captcha": (200, CAPTCHA),
    "/contact": (200, CONTACT),
    "/doors": (200, html("Doors", """<a href="/wall">wall</a> <a href="/apples">apples</a>""")),
    "/linkless": (200, html("Linkless", "<p>Nothing here.</p>")),
    "/talk": (200, html("Talk", """<h1>Talk</h1><a href="/held/talk">Read on</a>""")),
}


class Sites:
    def __init__(self) -> None:
        self.visits: Counter[str] = Counter()
        self._released = threading.Event()
        self._asked: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._answer))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        """What the setting `allow` names."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def url(self, path: str = "/") -> str:
        return f"http://{self.host}{path}"

    def release(self) -> None:
        """Answer what is held, from now on at once."""
        self._released.set()

    def asked(self, path: str) -> threading.Event:
        """Set once this path has been asked for."""
        with self._lock:
            return self._asked.setdefault(path, threading.Event())

    def _answer(self, target: str) -> Page:
        parts = urlsplit(target)
        with self._lock:
            self.visits[parts.path] += 1
        self.asked(parts.path).set()
        if parts.path.startswith("/held/"):
            self._released.wait(60)
            name = parts.path.removeprefix("/held/")
            return 200, name if name == "data" else html(f"Held {name}", f"<p>{name} at last</p>")
        if parts.path == "/done":
            given = parse_qs(parts.query)
            said = ", ".join(f"{key}={values[0]}" for key, values in sorted(given.items()))
            return 200, html("Thank you", f"""<h1 id="done">Thank you</h1><p>{said}</p>""")
        if parts.path == "/chosen":
            return 200, html("Chosen", f"<p>{parts.query}</p>")
        return PAGES.get(parts.path, (404, html("Not found", "<p>There is nothing.</p>")))

    def stop(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def _handler(answer: Callable[[str], Page]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = answer(self.path)
            data = body.encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except ConnectionError:
                pass  # the browser went on

        def log_message(self, *_: Any) -> None:
            return None

    return Handler
