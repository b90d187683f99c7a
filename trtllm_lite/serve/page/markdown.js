// Turns Markdown into elements. Every text becomes a text node, and only URLs of http and https become links, so that
// no text of a model is ever read as HTML. Syntax: the part of https://spec.commonmark.org that answers use, and the
// tables of https://github.github.com/gfm.

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

const INLINE =
  /(?<code>`+)(?<coded>.+?)\k<code>(?!`)|\*\*(?<strong>\S(?:.*?\S)?)\*\*(?!\*)|(?<![\w*])[*](?<em>[^\s*](?:[^*]*[^\s*])?)[*](?![\w*])|\[(?<label>[^\]]+)\]\((?<url>https?:\/\/[^\s)]+)\)/su;

// The nodes of a text within a block.
function inline(text) {
  const found = INLINE.exec(text);
  if (!found) return text ? [text] : [];
  const { coded, strong, em, label, url } = found.groups;
  let node;
  if (coded !== undefined) node = element("code", "", coded);
  else if (strong !== undefined) node = element("strong", "", ...inline(strong));
  else if (em !== undefined) node = element("em", "", ...inline(em));
  else node = Object.assign(element("a", "", ...inline(label)), { href: url, target: "_blank", rel: "noopener noreferrer" });
  const [before, behind] = [text.slice(0, found.index), text.slice(found.index + found[0].length)];
  return [...(before ? [before] : []), node, ...inline(behind)];
}

const ITEM = /^(?<indent> *)(?:[-*+]|(?<number>\d{1,9})[.)]) +(?<rest>.*)$/;
const FENCE = /^ {0,3}(?<marks>`{3,}|~{3,})\s*(?<language>[\w+#.-]*)/;
const ROW = /^\s*\|.*\|\s*$/;
const RULE = /^\s*\|(?:\s*:?-+:?\s*\|)+\s*$/;

// The blocks of a text: each has the lines that it is made of, and a function that makes its element.
function blocksOf(text) {
  const lines = text.split("\n");
  const blocks = [];
  for (let line = 0; line < lines.length; ) {
    const begin = line;
    const make = blockAt(lines, () => line, (next) => (line = next));
    if (make) blocks.push({ source: lines.slice(begin, line).join("\n"), make });
  }
  return blocks;
}

function blockAt(lines, at, go) {
  const line = lines[at()];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, go, fence.groups);
  const heading = /^ {0,3}(#{1,6}) +(.*?)(?: +#+)?\s*$/.exec(line);
  if (heading) return go(at() + 1), () => element(`h${Math.min(heading[1].length + 2, 6)}`, "", ...inline(heading[2]));
  if (/^ {0,3}([-*_])(?: *\1){2,}\s*$/.test(line)) return go(at() + 1), () => element("hr", "");
  if (!line.trim()) return go(at() + 1), null;
  if (ITEM.test(line)) return withLines(lines, at, go, (next) => ITEM.test(next) || /^ {2,}\S/.test(next), list);
  if (/^ {0,3}>/.test(line)) return withLines(lines, at, go, (next) => /^ {0,3}>/.test(next), quote);
  if (ROW.test(line) && RULE.test(lines[at() + 1] ?? "")) return withLines(lines, at, go, (next) => ROW.test(next), table);
  const ends = (next) => !next.trim() || FENCE.test(next) || ITEM.test(next) || /^ {0,3}(#{1,6} |>)/.test(next);
  return withLines(lines, at, go, (next) => !ends(next), (own) => element("p", "", ...inline(own.join("\n"))));
}

// A block that consists of this line and of the lines after it that continue it.
function withLines(lines, at, go, continues, make) {
  const begin = at();
  let end = begin + 1;
  while (end < lines.length && continues(lines[end])) end += 1;
  go(end);
  const own = lines.slice(begin, end);
  return () => make(own);
}

function fenced(lines, at, go, { marks, language }) {
  const begin = at() + 1;
  let end = begin;
  while (end < lines.length && !(lines[end].trim().startsWith(marks) && /^(`+|~+)$/.test(lines[end].trim()))) end += 1;
  go(end + 1);
  const code = lines.slice(begin, end).join("\n");
  return () => codeBlock(code, language);
}

// Code with its language and a copy button. The button copies by the selection, which works without TLS, too.
function codeBlock(code, language) {
  const shown = element("code", "", code);
  const button = element("button", "copy", "Copy");
  button.type = "button";
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(shown);
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  });
  return element("div", "code", element("div", "code-head", element("span", "", language || "code"), button), element("pre", "", shown));
}

function quote(lines) {
  const made = element("blockquote", "");
  showMarkdown(made, lines.map((line) => line.replace(/^ {0,3}> ?/, "")).join("\n"));
  return made;
}

// Lines that are indented further belong to the item above them, as lists or text of its own.
function list(lines) {
  const first = ITEM.exec(lines[0]).groups;
  const made = element(first.number === undefined ? "ul" : "ol", "");
  if (first.number !== undefined) made.start = Number(first.number);
  let own = [];
  const close = () => {
    if (!own.length) return;
    const item = element("li", "", ...inline(own[0]));
    if (own.length > 1) {
      const inner = element("div", "");
      const indent = Math.min(...own.slice(1).map((line) => line.search(/\S/)));
      showMarkdown(inner, own.slice(1).map((line) => line.slice(indent)).join("\n"));
      item.append(...inner.childNodes);
    }
    made.append(item);
  };
  for (const line of lines) {
    const found = ITEM.exec(line)?.groups;
    if (found && found.indent.length <= first.indent.length + 1) {
      close();
      own = [found.rest];
    } else own.push(line);
  }
  close();
  return made;
}

function table(lines) {
  const cells = (line, tag) => line.trim().slice(1, -1).split("|").map((cell) => element(tag, "", ...inline(cell.trim())));
  const body = lines.slice(2).map((line) => element("tr", "", ...cells(line, "td")));
  const head = element("thead", "", element("tr", "", ...cells(lines[0], "th")));
  return element("div", "scroll", element("table", "", head, element("tbody", "", ...body)));
}

// Show a text in a node. Blocks that have not changed stay, so that a selection in them stays, too.
function showMarkdown(node, text) {
  const blocks = blocksOf(text);
  let same = 0;
  while (same < blocks.length && node.children[same]?.source === blocks[same].source) same += 1;
  while (node.children.length > same) node.lastChild.remove();
  for (const block of blocks.slice(same)) node.append(Object.assign(block.make(), { source: block.source }));
}
