// What is to be seen of one document: where it is, and with `walk` its text in reading order and the elements that can be used,
// numbered. The elements are left in `holder`, which no script of the page can reach; what is returned is one JSON text. The walk is
// bounded by nodes, milliseconds and characters, the text by `maxReply` characters.
(holder, { walk, maxNodes, budgetMs, maxChars, maxElements, maxReply, first }) => {
  const began = performance.now();
  const elements = [];
  const boxes = new Map(); // number: [x, y, width, height]
  const lines = []; // [text, number or 0, above the screen?]
  let nodes = 0;
  let cut = false;
  let buffer = "";
  let bufferAbove = false;

  const USABLE =
    "a[href],area[href],button,input:not([type=hidden]),select,textarea,summary,[contenteditable=''],[contenteditable=true]," +
    "[onclick],[role=button],[role=link],[role=checkbox],[role=radio],[role=switch],[role=tab],[role=menuitem]," +
    "[role=menuitemcheckbox],[role=menuitemradio],[role=option],[role=combobox],[role=textbox],[role=searchbox],[role=slider]," +
    "[role=spinbutton],[role=treeitem],[role=gridcell][tabindex],[tabindex]:not([tabindex^='-'])";
  const SKIPPED = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "META", "LINK", "OBJECT", "EMBED",
    "defs", "symbol", "clipPath", "mask", "metadata", "title", "desc", "style", "script"]);
  const FORM_CHILDREN = Object.getOwnPropertyDescriptor(Node.prototype, "childNodes").get;
  const INPUTS = {
    button: "button", submit: "button", reset: "button", image: "button", checkbox: "checkbox", radio: "radio",
    range: "slider", number: "spinbutton", search: "searchbox", file: "file",
  };

  const squeezed = (text) => text.replace(/\s+/g, " ").trim();
  const short = (text, most) => {
    text = squeezed(text || "");
    return text.length > most ? text.slice(0, most) + "…" : text;
  };
  const quoted = (text) => '"' + text.replace(/"/g, "'") + '"';

  function roleOf(el) {
    const given = el.getAttribute("role");
    if (given) return given.split(" ")[0];
    switch (el.tagName) {
      case "A": case "AREA": return "link";
      case "BUTTON": case "SUMMARY": return "button";
      case "SELECT": return el.multiple ? "listbox" : "combobox";
      case "TEXTAREA": return "textbox";
      case "INPUT": return INPUTS[el.type] || "textbox";
      case "LABEL": return "label";
    }
    return el.isContentEditable ? "textbox" : el.tagName.toLowerCase();
  }

  function labelText(label) {
    // Without what is in its fields, such as the options of a list.
    const walker = document.createTreeWalker(label, NodeFilter.SHOW_TEXT, (node) =>
      node.parentElement.closest("select,textarea,button,script,style") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
    let text = "";
    while (walker.nextNode()) text += walker.currentNode.data;
    return text;
  }

  function nameOf(el) {
    const by = el.getAttribute("aria-labelledby");
    if (by) {
      const root = el.getRootNode();
      const named = by.split(/\s+/).map((id) => root.getElementById && root.getElementById(id)).filter(Boolean);
      const text = squeezed(named.map((found) => found.textContent).join(" "));
      if (text) return text;
    }
    const own = el.getAttribute("aria-label");
    if (own && own.trim()) return own;
    if (el.tagName === "INPUT" && ["button", "submit", "reset", "image"].includes(el.type))
      return el.value || el.alt || (el.type === "image" ? "" : el.type);
    if (el.labels && el.labels.length) {
      const text = squeezed([...el.labels].map(labelText).join(" "));
      if (text) return text;
    }
    if (["INPUT", "TEXTAREA", "SELECT"].includes(el.tagName))
      return el.placeholder || el.title || el.name || "";
    const text = squeezed((el instanceof SVGElement ? el.textContent : el.innerText) || "");
    if (text) return text;
    const image = el.matches("img,svg") ? el : el.querySelector("img[alt],svg[aria-label],[title]");
    return el.title || (image && (image.alt || image.getAttribute("aria-label") || image.getAttribute("title"))) || "";
  }

  function describe(el, number, bare) {
    const role = roleOf(el);
    let line = `[${number}] ${role}`;
    const name = bare ? "" : short(nameOf(el), 120);
    if (name) line += " " + quoted(name);
    const states = [];
    if (!name && !bare && !el.matches(USABLE)) {
      if (el instanceof SVGElement) {
        const box = el.getBoundingClientRect();
        states.push(short(getComputedStyle(el).fill, 40), `${Math.round(box.width)} × ${Math.round(box.height)}`);
      } else {
        if (el.className || el.id) states.push(short(`${el.className || el.id}`, 40));
        const colour = getComputedStyle(el).backgroundColor;
        if (!colour.endsWith(", 0)")) states.push(colour);
      }
    }
    if (el.tagName === "SELECT") {
      const chosen = [...el.selectedOptions].map((option) => short(option.label, 60)).join(", ");
      const options = [...el.options].slice(0, 30).map((option) => short(option.label, 60));
      line += ` value=${quoted(chosen)} options: ${options.join(" | ")}`;
      if (el.options.length > 30) line += ` | … ${el.options.length - 30} more`;
    } else if (["textbox", "searchbox", "spinbutton", "slider"].includes(role)) {
      let value = "value" in el ? String(el.value) : el.isContentEditable ? el.innerText : "";
      if (el.type === "password") value = "•".repeat(Math.min(value.length, 20));
      if (value) line += ` value=${quoted(short(value, 200))}`;
      if (!["text", "textarea", undefined].includes(el.type) && el.tagName === "INPUT") states.push(el.type);
    }
    const checked = "checked" in el && ["checkbox", "radio"].includes(el.type) ? el.checked : el.getAttribute("aria-checked");
    if (checked === true || checked === "true") states.push("checked");
    if (el.getAttribute("aria-selected") === "true") states.push("selected");
    const expanded = el.getAttribute("aria-expanded");
    if (expanded) states.push(expanded === "true" ? "open" : "closed");
    if (el.disabled || el.getAttribute("aria-disabled") === "true") states.push("disabled");
    if (el.readOnly) states.push("read only");
    if (el.required) states.push("required");
    return states.length ? `${line} (${states.join(", ")})` : line;
  }

  // What can be hovered by the page's style sheets: [selectors of what shows something else, of what only looks different].
  function hoverRules() {
    const menus = new Set(), looks = new Set();
    let left = 20000;
    const read = (rules) => {
      for (const rule of rules) {
        if (--left < 0 || menus.size + looks.size > 200) return;
        if (rule.cssRules && rule.cssRules.length) read(rule.cssRules);
        if (!rule.selectorText || !rule.selectorText.includes(":hover")) continue;
        for (const selector of rule.selectorText.split(",")) {
          const at = selector.indexOf(":hover");
          const hovered = selector.slice(0, at).trim();
          if (at < 0 || !/[\w\]]$/.test(hovered) || /[()]/.test(selector)) continue;
          (/[\s>+~]/.test(selector.slice(at + 6).trim()) || /^[\s>+~]/.test(selector.slice(at + 6)) ? menus : looks).add(hovered);
        }
      }
    };
    for (const sheet of document.styleSheets) {
      try { read(sheet.cssRules); } catch (problem) { /* of another site */ }
    }
    return [menus, looks].map((selectors) => [...selectors].join(","));
  }

  function hovered() {
    const sheets = document.styleSheets;
    let sign = sheets.length;
    for (const sheet of sheets) {
      try { sign += 1000 * sheet.cssRules.length; } catch (problem) { /* of another site */ }
    }
    if (holder.hoverSign !== sign) {
      holder.hoverSign = sign;
      holder.hoverRules = hoverRules();
    }
    return holder.hoverRules.map((selector) => {
      try { return new Set(selector ? document.querySelectorAll(selector) : []); } catch (problem) { return new Set(); }
    });
  }

  const [menus, looks] = walk ? hovered() : [];
  const listens = (el) =>
    holder.signs.heard.has(el) || !!(el.onclick || el.onmousedown || el.onmouseup || el.onmouseover || el.onmouseenter || el.ondblclick);
  const large = (el) => {
    const box = el.getBoundingClientRect();
    return box.width * box.height > (innerWidth * innerHeight) / 2;
  };
  // Whether there is something to use in an element that is itself no more than listened to or hovered.
  function holdsMore(el) {
    let left = 300;
    for (const inner of el.querySelectorAll("*")) {
      if (--left < 0) return true;
      if ((inner.matches(USABLE) || listens(inner) || menus.has(inner)) && inner.checkVisibility()) return true;
    }
    return false;
  }
  // Whether an element listens for its parts, such as the items of a list or the shapes of a drawing.
  const listensForParts = (el) => el.childElementCount > 1 && listens(el) &&
    (el instanceof SVGElement || [...el.children].every((part) => part.tagName === el.firstElementChild.tagName));

  function usable(el, style, parentPointer, part) {
    if (el.matches(USABLE)) return true;
    if (part && !SKIPPED.has(el.tagName)) return !holdsMore(el);
    if (listens(el)) return !large(el) && !listensForParts(el) && !holdsMore(el);
    if (menus.has(el) || looks.has(el)) return !large(el) && !holdsMore(el);
    if (el.tagName === "LABEL") return !!el.control && !shown(el.control, getComputedStyle(el.control));
    return style.cursor === "pointer" && !parentPointer;
  }

  function shown(el, style) {
    if (style.visibility !== "visible") return false;
    const box = el.getBoundingClientRect();
    return box.width > 0 && box.height > 0;
  }

  function flush() {
    const text = squeezed(buffer);
    if (text && text !== "|") lines.push([text, 0, bufferAbove]);
    buffer = "";
  }

  function children(node) {
    if (node.shadowRoot) return node.shadowRoot.childNodes;
    if (node.tagName === "SLOT") {
      const given = node.assignedNodes();
      if (given.length) return given;
    }
    return node.childNodes;
  }

  function visit(node, pointer, within, part = false) {
    if (cut) return;
    if (++nodes > maxNodes || ((nodes & 255) === 0 && performance.now() - began > budgetMs)) {
      cut = true;
      return;
    }
    if (node.nodeType === Node.TEXT_NODE) {
      if (within || !node.data.trim()) { if (!within && buffer) buffer += " "; return; }
      const parent = node.parentElement;
      if (parent && getComputedStyle(parent).visibility !== "visible") return;
      if (!buffer.trim()) {
        const box = parent && parent.getBoundingClientRect();
        bufferAbove = !!box && box.bottom < 0;
      }
      buffer += node.data;
      return;
    }
    if (node instanceof HTMLFormElement) {
      // A field called `matches` or `tagName` hides the form's own: only what cannot be hidden is asked.
      flush();
      for (const child of FORM_CHILDREN.call(node)) visit(child, pointer, within);
      flush();
      return;
    }
    if (node.nodeType !== Node.ELEMENT_NODE || SKIPPED.has(node.tagName)) return;
    if (node.checkVisibility && !node.checkVisibility()) {
      if (getComputedStyle(node).display !== "contents") return;
    }
    const style = getComputedStyle(node);
    const inline = style.display.startsWith("inline") || style.display === "contents";
    const cell = style.display === "table-cell";
    if (!inline && !cell) flush();
    if (cell && buffer.trim()) buffer += " | ";
    const isPointer = style.cursor === "pointer";
    if (node.tagName !== "BODY" && node.tagName !== "HTML" && usable(node, style, pointer, part) && shown(node, style)) {
      flush();
      const nested = node.childElementCount > 0 && node.tagName !== "SELECT" &&
        (node.matches(USABLE) ? node.querySelector(USABLE) !== null : holdsMore(node));
      elements.push(node);
      const box = node.getBoundingClientRect();
      boxes.set(first + elements.length, [box.x, box.y, box.width, box.height].map(Math.round));
      lines.push([describe(node, first + elements.length, nested), first + elements.length, box.bottom < 0]);
      if (nested) for (const child of children(node)) visit(child, isPointer, within);
      if (!inline) flush();
      return;
    }
    if (node.tagName === "IMG") {
      const alt = short(node.alt, 120);
      if (alt) buffer += ` (image: ${alt}) `;
      return;
    }
    if (node.tagName === "LABEL" && node.control && shown(node.control, getComputedStyle(node.control))) {
      // Its text is the name of its field: only what can be used in it is told again.
      for (const child of children(node)) visit(child, isPointer, true);
      return;
    }
    if (node.tagName === "IFRAME" || node.tagName === "FRAME") return;
    if (node.tagName === "svg" && !holder.signs.svg && !node.querySelector("text,foreignObject")) return; // an icon
    const words = node.tagName === "text"; // of a drawing: each is a line of its own
    if (words) flush();
    if (node.tagName === "BR") { flush(); return; }
    if (/^H[1-6]$/.test(node.tagName)) buffer += "#".repeat(Number(node.tagName[1])) + " ";
    const inParts = listensForParts(node);
    for (const child of children(node)) visit(child, isPointer, within, inParts);
    if ((!inline && !cell) || words) flush();
  }

  try {
    if (walk && document.body) visit(document.body, false, false);
  } catch (problem) { // nested deeper than can be followed
    cut = true;
  }
  flush();

  const whole = lines.reduce((sum, line) => sum + line[0].length + 1, 0);
  const tooMany = whole > maxChars || elements.length > maxElements;
  const kept = [];
  let above = 0, below = 0, chars = 0, listed = 0;
  for (const [text, number, isAbove] of lines) {
    if (tooMany && isAbove) { above++; continue; }
    if (below || (number && listed >= maxElements) || chars + text.length + 1 > maxChars) {
      if (!below && !number && maxChars - chars > 40) {
        kept.push([text.slice(0, maxChars - chars - 2) + "…", 0]);
        chars = maxChars;
      }
      below++;
      continue;
    }
    if (number) listed++;
    chars += text.length + 1;
    kept.push([text, number]);
  }

  const navigation = performance.getEntriesByType("navigation")[0];
  const scrolling = document.scrollingElement || document.documentElement;
  const text = document.body ? document.body.innerText || "" : "";
  const walls = [
    ...document.querySelectorAll(
      "iframe[src*='recaptcha/'],iframe[src*='hcaptcha.com'],iframe[src*='challenges.cloudflare.com'],iframe[src*='captcha-delivery.com']," +
      "#challenge-form,#challenge-running,#px-captcha,.g-recaptcha,.h-captcha,.cf-turnstile,form[action*='captcha' i],img[src*='captcha' i]"
    ),
  ].filter((el) => shown(el, getComputedStyle(el)));
  holder.elements = elements;
  // One text costs the driver far less to pass on than the same thing value by value. Libraries such as Prototype give arrays and
  // objects a toJSON of their own: what has no prototype has none.
  const plain = (value) => Object.setPrototypeOf(value, null);
  const reply = JSON.stringify(plain({
    texts: plain(kept.map(([line]) => line)), numbers: plain(kept.map(([, number]) => number)),
    boxes: plain(kept.flatMap(([, number]) => (number ? [number, ...boxes.get(number)] : []))),
    above, below, cut, nodes, found: elements.length,
    title: String(document.title).slice(0, 500), url: location.href.slice(0, 4000), status: (navigation && navigation.responseStatus) || null,
    scroll: plain([Math.round(scrolling.scrollTop), Math.round(scrolling.scrollHeight), innerHeight]),
    text: text.length, beginning: text.slice(0, 2000), captcha: walls.length, fonts: document.fonts.status === "loading",
  }));
  return reply.length <= maxReply ? reply : "";
}
