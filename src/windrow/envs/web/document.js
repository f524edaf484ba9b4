// Runs in every document before the page's own scripts. It notes which elements listen for the mouse, and keeps the clipboard
// of the context: Chromium's own is shared by all contexts of a browser. Who knows `name` can ask for both.
(name) => {
  const MOUSE = new Set(["click", "dblclick", "mousedown", "mouseup", "pointerdown", "pointerup", "touchstart", "touchend",
    "mouseenter", "mouseover", "pointerenter", "pointerover", "contextmenu", "dragstart"]);
  const signs = { heard: new WeakSet(), svg: false };
  let held = "";
  const told = window[name];
  delete window[name];

  EventTarget.prototype.addEventListener = new Proxy(EventTarget.prototype.addEventListener, {
    apply(add, target, given) {
      if (MOUSE.has(given[0]) && target instanceof Element) {
        signs.heard.add(target);
        if (target instanceof SVGElement) signs.svg = true;
      }
      return Reflect.apply(add, target, given);
    },
  });

  const focused = () => {
    let el = document.activeElement;
    while (el && el.shadowRoot && el.shadowRoot.activeElement) el = el.shadowRoot.activeElement;
    return el;
  };
  const selected = () => {
    const el = focused();
    if (el && typeof el.value === "string" && typeof el.selectionStart === "number")
      return el.type === "password" ? "" : el.value.slice(el.selectionStart, el.selectionEnd);
    return String(getSelection());
  };
  const asked = (event, data) => {
    const again = new ClipboardEvent(event.type, { clipboardData: data, bubbles: true, cancelable: true, composed: true });
    return (event.composedPath()[0] || document).dispatchEvent(again);
  };
  // The trusted event goes no further: another one, with the context's own clipboard, takes its place.
  const taken = (event) => {
    if (!event.isTrusted) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    const data = new DataTransfer();
    if (event.type === "paste") {
      data.setData("text/plain", held);
      if (asked(event, data) && held) document.execCommand("insertText", false, held);
      return;
    }
    const text = selected();
    const usual = asked(event, data);
    if (usual && text && event.type === "cut") document.execCommand("delete");
    const copied = usual ? text : data.getData("text/plain");
    if (!copied) return;
    held = copied;
    if (told) told(copied.slice(0, 1000001));
  };
  for (const type of ["copy", "cut", "paste"]) addEventListener(type, taken, true);

  addEventListener(name, (event) => {
    event.stopImmediatePropagation();
    const request = event.detail;
    if ("held" in request) held = String(request.held);
    request.signs = signs;
  }, true);
}
