/* markdown.js - turns the Markdown of models into nodes, in time linear in the length of the
 * text.
 *
 * It reads headings, rules, quotes, lists, tables, fenced code, emphasis, code, links, and TeX
 * between \( \) and \[ \], which it shows unchanged. It reads no HTML, images, reference links or
 * indented code. A library would add 100 KB to the page, and some texts of 200 KB would still
 * stop it for seconds.
 *
 * How time stays linear: a scan never returns to text that an earlier scan has passed, or it has
 * a fixed bound. No regular expression has two repetitions that can match the same characters.
 * Nesting is limited. A closing mark that does not exist is searched for once.
 * tools/page_check.py measures hostile texts.
 *
 * MarkdownStream shows a text that is still growing. Complete blocks are rendered once. The last
 * block is rendered again at every change while it is short. A long one is rendered again after
 * it has grown by a quarter; until then its new text is shown plain. The sum of this work is
 * linear too. */

const MAX_NESTING = 16;
const MAX_NODES = 10000; /* of one text; the rest of the text is shown plain */
/* The time that a browser needs for a table grows with rows times columns, empty cells included. */
const MAX_COLUMNS = 64;
const SHORT_BLOCK = 16384; /* characters that are rendered again for each token */
const MAX_HIGHLIGHT = 60000; /* characters of code */
const MAX_MATH = 4000; /* characters between \( and \) */
const MAX_PARENS = 8; /* open parentheses in an address */

/* The number of nodes that the text being rendered may still add. */
let nodesLeft = 0;
const mayAdd = () => nodesLeft > 0 && nodesLeft-- > 0;

/* ---- Code ---- */

const KEYWORDS = new Set(
  (
    'abstract as async await bool boolean break case catch char class const continue def ' +
    'default del do double elif else enum except export extends extern false False finally ' +
    'float fn for from func function goto if impl import in int interface is lambda let long ' +
    'match mod mut namespace new nil None not null or pass private protected pub public raise ' +
    'return self short signed sizeof static str struct super switch template this throw trait ' +
    'true True try type typedef typeof union unsigned use using var virtual void while with ' +
    'yield and then fi done echo select where insert update delete create table'
  ).split(' '),
);
const HASH_COMMENTS =
  /^(py|python|sh|bash|shell|zsh|yaml|yml|toml|rb|ruby|perl|r|make|makefile|dockerfile|cmake)$/i;
const DASH_COMMENTS = /^(sql|lua|haskell)$/i;
const WORD = /[A-Za-z_]\w*/y,
  NUMBER = /\d[\w.]*/y;

/* The end of the comment that begins at i, or i if there is none. */
function commentEnd(code, i, lang) {
  const mark = HASH_COMMENTS.test(lang) ? '#' : DASH_COMMENTS.test(lang) ? '--' : '//';
  const long = mark === '//' && code.startsWith('/*', i);
  if (!long && !code.startsWith(mark, i)) return i;
  const end = code.indexOf(long ? '*/' : '\n', i + 1);
  return end < 0 ? code.length : long ? end + 2 : end;
}

/* The end of the string that begins at i; closed: false if it has no closing quote on its line. */
function stringEnd(code, i) {
  const quote = code[i];
  let k = i + 1;
  for (; k < code.length && code[k] !== quote; k++) {
    if (code[k] === '\n' && quote !== '`') return { end: k, closed: false };
    if (code[k] === '\\') k++;
  }
  return { end: Math.min(k + 1, code.length), closed: k < code.length };
}

function highlight(code, lang) {
  if (!lang || code.length > MAX_HIGHLIGHT) return [code];
  const out = [];
  let plain = 0,
    i = 0;
  const mark = (kind, end) => {
    if (mayAdd()) {
      if (i > plain) out.push(code.slice(plain, i));
      out.push(el('span', { className: kind }, code.slice(i, end)));
      plain = end;
    }
    i = end;
  };
  while (i < code.length) {
    const end = commentEnd(code, i, lang);
    if (end > i) {
      mark('c', end);
      continue;
    }
    const c = code[i];
    if (c === '"' || c === "'" || c === '`') {
      const s = stringEnd(code, i);
      if (s.closed) mark('s', s.end);
      else i = s.end;
      continue;
    }
    const re = c >= '0' && c <= '9' ? NUMBER : WORD;
    re.lastIndex = i;
    const m = re.exec(code);
    if (!m) i++;
    else if (re === NUMBER) mark('n', i + m[0].length);
    else if (KEYWORDS.has(m[0])) mark('k', i + m[0].length);
    else i += m[0].length;
  }
  out.push(code.slice(plain));
  return out;
}

/* ---- Text within a block ---- */

function safeLink(url) {
  if (!/^(https?:\/\/|mailto:)/i.test(url)) return null;
  try {
    return new URL(url).href;
  } catch {
    return null;
  }
}

const ESCAPABLE = '\\`*_{}[]()#+-.!|~<>$"\'';
const ADDRESS = /https?:\/\/[^\s<>()`"'\/.,;:!?][^\s<>()`"']*/y,
  BRACKETED = /<(https?:\/\/[^\s<>]*)>/y;
const isSpace = (c) => c === undefined || /\s/.test(c);
const isWord = (c) => c !== undefined && /[\p{L}\p{N}_]/u.test(c);

/* Removes from the end of an address the marks of a sentence or an emphasis around it. */
function withoutStops(url) {
  let end = url.length;
  while (end && '.,;:!?]*_~'.includes(url[end - 1])) end--;
  return url.slice(0, end);
}

/* Reads address and title after "](". Returns {href, end}, or null. A scan that fails crosses at
 * most MAX_PARENS beginnings of other links, so the sum of all scans is linear. */
function destination(text, i) {
  const blank = () => {
    while (text[i] === ' ' || text[i] === '\n') i++;
  };
  let href = '',
    depth = 0;
  blank();
  if (text[i] === '<') {
    const from = ++i;
    while (i < text.length && text[i] !== '>' && text[i] !== '<' && text[i] !== '\n') i++;
    if (text[i] !== '>') return null;
    href = text.slice(from, i++);
  } else {
    const from = i;
    for (; i < text.length && !isSpace(text[i]); i++) {
      if (text[i] === '\\') i++;
      else if (text[i] === '(' && ++depth > MAX_PARENS) return null;
      else if (text[i] === ')' && depth-- === 0) break;
    }
    href = text.slice(from, i);
  }
  blank();
  if (text[i] === '"' || text[i] === "'") {
    const end = text.indexOf(text[i], i + 1);
    if (end < 0) return null;
    i = end + 1;
    blank();
  }
  return text[i] === ')' && (href = safeLink(href)) ? { href, end: i + 1 } : null;
}

/* Splits the text of a block into pieces: strings and objects {kind}. Emphasis is matched on a
 * list of runs of marks, with CommonMark's algorithm; links are matched on a stack of open
 * brackets. */
class Inline {
  constructor(text) {
    this.text = text;
    this.pieces = [];
    this.brackets =
      []; /* open ones: {at: index of the piece, run: the last run before it, image} */
    this.last = null; /* the last run on the list */
    this.ticks = null; /* length of a run of backticks -> {places, next}: the next one not passed */
    this.closers = {}; /* closing mark of TeX -> the place of the next one, or Infinity */
    this.read();
    this.emphasis(null);
  }

  read() {
    const t = this.text,
      n = t.length;
    let i = 0,
      plain = 0,
      end;
    const flush = () => {
      if (i > plain) this.pieces.push(t.slice(plain, i));
    };
    const take = (piece, to) => {
      flush();
      if (piece !== null) this.pieces.push(piece);
      plain = i = to;
    };
    while (i < n) {
      const c = t[i];
      if (c === '\\') {
        if ((end = this.mathEnd(i))) take({ kind: 'math', text: t.slice(i, end) }, end);
        else if (t[i + 1] === '\n') take(null, i + 1);
        else if (i + 1 < n && ESCAPABLE.includes(t[i + 1])) take(t[i + 1], i + 2);
        else i++;
      } else if (c === '`') {
        for (end = i; t[end] === '`'; end++);
        const close = this.closingTicks(i, end - i);
        if (close < 0) i = end;
        else take({ kind: 'code', text: t.slice(end, close) }, close + end - i);
      } else if (c === '*' || c === '_' || c === '~') {
        for (end = i; t[end] === c; end++);
        const run = c === '~' && end - i !== 2 ? null : this.run(c, i, end);
        if (run) take(run, end);
        else i = end;
      } else if (c === '[' || (c === '!' && t[i + 1] === '[')) {
        const image = c === '!';
        flush();
        this.brackets.push({ at: this.pieces.length, run: this.last, image });
        plain = i;
        take(image ? '![' : '[', i + (image ? 2 : 1));
      } else if (c === ']') {
        const open = this.brackets.pop(),
          to = open && t[i + 1] === '(' ? destination(t, i + 2) : null;
        if (!to) {
          i++;
          continue;
        }
        take(null, to.end);
        this.pieces[open.at] = { kind: 'link', href: to.href };
        this.pieces.push({ kind: 'end' });
        this.emphasis(open.run);
        if (!open.image) this.brackets.length = 0; /* no links in links */
      } else if (c === '<' || (c === 'h' && !isWord(t[i - 1]))) {
        const re = c === '<' ? BRACKETED : ADDRESS;
        re.lastIndex = i;
        const m = re.exec(t);
        if (!m) {
          i++;
          continue;
        }
        const url = m[1] || withoutStops(m[0]),
          href = safeLink(url);
        if (href) take({ kind: 'auto', href, text: url }, i + (m[1] ? m[0].length : url.length));
        else i += m[0].length;
      } else if (c === '\n') {
        for (end = i + 1; t[end] === ' '; end++);
        take({ kind: 'br' }, end);
      } else i++;
    }
    flush();
  }

  /* The end of the TeX that begins at i with \( or \[, or 0. */
  mathEnd(i) {
    const close = { '(': '\\)', '[': '\\]' }[this.text[i + 1]];
    if (!close) return 0;
    if (!(this.closers[close] >= i + 2)) {
      const at = this.text.indexOf(close, i + 2);
      this.closers[close] = at < 0 ? Infinity : at;
    }
    return this.closers[close] - i <= MAX_MATH ? this.closers[close] + 2 : 0;
  }

  /* The place of the next run of exactly n backticks after i, or -1. */
  closingTicks(i, n) {
    if (!this.ticks) {
      this.ticks = new Map();
      for (const m of this.text.matchAll(/`+/g)) {
        const same = this.ticks.get(m[0].length);
        if (same) same.places.push(m.index);
        else this.ticks.set(m[0].length, { places: [m.index], next: 0 });
      }
    }
    const same = this.ticks.get(n);
    if (!same) return -1; /* i is inside a run whose first backtick is escaped */
    while (same.places[same.next] <= i) same.next++;
    return same.next < same.places.length ? same.places[same.next] : -1;
  }

  /* Adds a run of marks to the list if it can begin or end emphasis; else returns null. */
  run(char, i, end) {
    const before = this.text[i - 1],
      after = this.text[end];
    const opens = !isSpace(after) && !(char === '_' && isWord(before));
    const closes = !isSpace(before) && !(char === '_' && isWord(after));
    if (!opens && !closes) return null;
    const run = {
      kind: 'run',
      at: i,
      char,
      total: end - i,
      left: end - i,
      opens,
      closes,
      ends: [],
      begins: [],
      prev: this.last,
      next: null,
    };
    if (this.last) this.last.next = run;
    return (this.last = run);
  }

  unlink(run) {
    if (run.prev) run.prev.next = run.next;
    if (run.next) run.next.prev = run.prev;
    else this.last = run.prev;
  }

  /* Matches the runs after bottom (null: all runs) and removes them from the list. */
  emphasis(bottom) {
    const hopeless = {}; /* kind of closer -> no run before this place can open it */
    let closer = this.last;
    while (closer && closer.prev !== bottom) closer = closer.prev;
    while (closer) {
      const next = closer.next;
      if (!closer.closes) {
        closer = next;
        continue;
      }
      const kind = closer.char + closer.opens + (closer.total % 3);
      let opener = closer.prev;
      for (
        ;
        opener && opener !== bottom && opener.at >= (hopeless[kind] || 0);
        opener = opener.prev
      )
        if (
          opener.opens &&
          opener.char === closer.char &&
          !(
            (closer.opens || opener.closes) &&
            closer.total % 3 &&
            (opener.total + closer.total) % 3 === 0
          )
        )
          break;
      if (!opener || opener === bottom || opener.at < (hopeless[kind] || 0)) {
        hopeless[kind] = closer.at;
        if (!closer.opens) this.unlink(closer);
        closer = next;
        continue;
      }
      const n = opener.left > 1 && closer.left > 1 ? 2 : 1;
      const tag = closer.char === '~' ? 'del' : n === 2 ? 'strong' : 'em';
      opener.begins.push(tag);
      closer.ends.push(tag);
      opener.left -= n;
      closer.left -= n;
      opener.next = closer; /* unmatched runs between the two stay text */
      closer.prev = opener;
      if (!opener.left) this.unlink(opener);
      if (!closer.left) {
        this.unlink(closer);
        closer = next;
      }
    }
    this.last = bottom;
    if (bottom) bottom.next = null;
  }

  nodes() {
    const root = document.createDocumentFragment(),
      stack = [root];
    let text = '',
      links = 0;
    const flush = () => {
      if (text) stack[stack.length - 1].append(text);
      text = '';
    };
    const put = (node) => {
      flush();
      stack[stack.length - 1].append(node);
    };
    const begin = (tag, props) => {
      /* beyond a limit no element is made */
      const up = stack[stack.length - 1];
      flush();
      if (stack.length <= MAX_NESTING && tag && mayAdd())
        up.append((stack[stack.length] = el(tag, props)));
      else stack.push(up);
    };
    const end = () => {
      flush();
      stack.pop();
    };
    for (const p of this.pieces) {
      if (typeof p === 'string') text += p;
      else if (p.kind === 'run') {
        for (let k = 0; k < p.ends.length; k++) end();
        text += p.char.repeat(p.left);
        for (let k = p.begins.length; k--;) begin(p.begins[k]);
      } else if (p.kind === 'link')
        begin(links++ ? null : 'a', { href: p.href, target: '_blank', rel: 'noopener noreferrer' });
      else if (p.kind === 'end') {
        links--;
        end();
      } else if (!mayAdd()) text += p.text || '\n';
      else if (p.kind === 'code') put(el('code', {}, tidyCode(p.text)));
      else if (p.kind === 'math') put(el('span', { className: 'math' }, p.text));
      else if (p.kind === 'br') put(el('br'));
      else
        put(
          links
            ? p.text
            : el('a', { href: p.href, target: '_blank', rel: 'noopener noreferrer' }, p.text),
        );
    }
    flush();
    return root;
  }
}

/* Newlines become spaces. One space at both ends is removed, as in `` `a` ``. */
function tidyCode(text) {
  text = text.replaceAll('\n', ' ');
  return text.length > 2 && text.startsWith(' ') && text.endsWith(' ') ? text.slice(1, -1) : text;
}

const inline = (text) => new Inline(text).nodes();

/* ---- Blocks ---- */

const FENCE = /^ {0,3}(?:(`{3,})([^`]*)|(~{3,})(?!~)(.*))$/,
  HEAD = /^ {0,3}(#{1,6})(?=\s|$)/,
  QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s|$)/;

function indentOf(line) {
  let n = 0;
  for (let i = 0; line[i] === ' ' || line[i] === '\t'; i++) n += line[i] === '\t' ? 4 - (n % 4) : 1;
  return n;
}

/* The line without its first n columns of space. */
function outdent(line, n) {
  let i = 0;
  for (let k = 0; k < n && (line[i] === ' ' || line[i] === '\t'); i++)
    k += line[i] === '\t' ? 4 - (k % 4) : 1;
  return line.slice(i);
}

/* Three or more - or * or _ and nothing else but spaces. */
function isRule(line) {
  const t = line.trim();
  let marks = 0;
  if (!'-*_'.includes(t[0] || 'x')) return false;
  for (let i = 0; i < t.length; i++) {
    if (t[i] === t[0]) marks++;
    else if (t[i] !== ' ' && t[i] !== '\t') return false;
  }
  return marks >= 3;
}

function cells(line) {
  let t = line.trim();
  if (t.startsWith('|')) t = t.slice(1);
  if (t.endsWith('|') && !t.endsWith('\\|')) t = t.slice(0, -1);
  return t.split(/(?<!\\)\|/).map((c) => c.trim().replaceAll('\\|', '|'));
}

const isTableRule = (line) =>
  line.includes('-') &&
  /^[\s|:-]+$/.test(line) &&
  cells(line).length <= MAX_COLUMNS &&
  cells(line).every((c) => /^:?-+:?$/.test(c));
const isMathMark = (line) => {
  const t = line.trim();
  return t === '\\[' || t === '$$';
};
const isItem = (line) => ITEM.test(line) && !isRule(line);
const beginsBlock = (line) =>
  FENCE.test(line) ||
  HEAD.test(line) ||
  QUOTE.test(line) ||
  isItem(line) ||
  isRule(line) ||
  isMathMark(line);

function beginBlock(line) {
  let m;
  if ((m = FENCE.exec(line)))
    return {
      kind: 'fence',
      mark: m[1] || m[3],
      lang: (m[2] || m[4] || '').trim().split(/\s/)[0],
      indent: indentOf(line),
    };
  if (HEAD.test(line)) return { kind: 'head' };
  if (isRule(line)) return { kind: 'rule' };
  if (isMathMark(line)) return { kind: 'math', close: line.trim() === '$$' ? '$$' : '\\]' };
  if (QUOTE.test(line)) return { kind: 'quote' };
  if ((m = ITEM.exec(line)))
    return {
      kind: 'list',
      base: indentOf(line),
      ordered: m[2].length > 1,
      first: parseInt(m[2], 10),
    };
  return { kind: 'text' };
}

/* Whether the line continues block b. Updates the state of b. */
function goesOn(b, line) {
  const blank = !line.trim();
  switch (b.kind) {
    case 'fence':
    case 'math':
      if (b.closed) return false;
      if (b.kind === 'math') b.closed = line.trimEnd().endsWith(b.close);
      else
        b.closed =
          indentOf(line) < 4 &&
          line.trim().length >= b.mark.length &&
          line.trim() === b.mark[0].repeat(line.trim().length);
      return true;
    case 'quote':
      return !blank && (QUOTE.test(line) || !beginsBlock(line));
    case 'table':
      return !blank && line.includes('|');
    case 'text':
      if (blank) return false;
      if (b.lines.length === 1 && b.lines[0].includes('|') && isTableRule(line)) b.kind = 'table';
      return b.kind === 'table' || !beginsBlock(line);
    case 'list': {
      const after = b.blank;
      b.blank = blank;
      if (blank || indentOf(line) > b.base + 1) return true;
      if (isItem(line))
        return indentOf(line) >= b.base && ITEM.exec(line)[2].length > 1 === b.ordered;
      return !after && !beginsBlock(line);
    }
    default:
      return false; /* one line */
  }
}

/* Splits a text into blocks, line by line. Only the last block is open; the others are complete. */
class Blocks {
  constructor() {
    this.complete = [];
    this.open = null; /* {kind, from: where it begins in the text, lines} */
  }
  add(line, from) {
    if (this.open && goesOn(this.open, line)) {
      this.open.lines.push(line);
      return;
    }
    this.end();
    if (!line.trim()) return;
    this.open = beginBlock(line);
    this.open.from = from;
    this.open.lines = [line];
  }
  end() {
    if (this.open) this.complete.push(this.open);
    this.open = null;
  }
}

function blocksOf(lines) {
  const b = new Blocks();
  for (const line of lines) b.add(line, 0);
  b.end();
  return b.complete;
}

const textOf = (b) => b.lines.map((l) => l.trim()).join('\n');

function headNode(line) {
  const m = HEAD.exec(line);
  let text = line.slice(m[0].length).trim(),
    end = text.length;
  while (end && text[end - 1] === '#') end--;
  if (!end || text[end - 1] === ' ') text = text.slice(0, end).trim();
  return el('h' + m[1].length, {}, inline(text));
}

function codeNode(lang, code) {
  return el(
    'div',
    { className: 'fence' },
    el(
      'div',
      {},
      el('span', {}, lang || 'text'),
      copyButton(() => code),
    ),
    el('pre', { tabIndex: 0 }, el('code', {}, ...highlight(code, lang))),
  );
}

function listNode(b, depth) {
  const node = el(b.ordered ? 'ol' : 'ul');
  const items = [];
  let width = 0;
  if (b.ordered && b.first !== 1) node.start = b.first;
  for (const line of b.lines) {
    const m = indentOf(line) <= b.base + 1 && isItem(line) ? ITEM.exec(line) : null;
    if (m) {
      width = Math.max(indentOf(line) + m[2].length + 1, 2);
      items.push([line.slice(m[0].length)]);
    } else items[items.length - 1].push(outdent(line, width));
  }
  for (const item of items) {
    if (!mayAdd()) {
      node.append(item.join('\n') + '\n');
      continue;
    }
    const inner = blocksOf(item),
      li = el('li');
    if (inner.length && inner[0].kind === 'text') {
      let text = textOf(inner.shift());
      const box = /^\[([ xX])\] /.exec(text);
      if (box) {
        li.className = 'task';
        text = (box[1] === ' ' ? '\u2610 ' : '\u2611 ') + text.slice(4);
      }
      li.append(inline(text));
    }
    for (const x of inner) li.append(blockNode(x, depth + 1));
    node.append(li);
  }
  return node;
}

/* Short rows are not filled up: that would make many cells from little text. */
function tableNode(b) {
  const side = cells(b.lines[1]).map((c) =>
    c.endsWith(':') ? (c.startsWith(':') ? 'mid' : 'right') : '',
  );
  const head = cells(b.lines[0]);
  const row = (tag, line) =>
    el(
      'tr',
      {},
      ...cells(line)
        .slice(0, head.length)
        .filter(mayAdd)
        .map((c, k) => el(tag, { className: side[k] || '' }, inline(c))),
    );
  const body = el('tbody');
  let at = 2;
  for (; at < b.lines.length && mayAdd(); at++) body.append(row('td', b.lines[at]));
  return el(
    'div',
    { className: 'wide' },
    el('table', {}, el('thead', {}, row('th', b.lines[0])), body),
    b.lines.slice(at).join('\n'),
  );
}

function blockNode(b, depth) {
  if (depth > MAX_NESTING || !mayAdd()) return b.lines.join('\n') + '\n';
  switch (b.kind) {
    case 'fence':
      return codeNode(
        b.lang,
        b.lines
          .slice(1, b.closed ? -1 : undefined)
          .map((l) => outdent(l, b.indent))
          .join('\n'),
      );
    case 'math':
      return el('p', { className: 'math' }, b.lines.join('\n'));
    case 'head':
      return headNode(b.lines[0]);
    case 'rule':
      return el('hr');
    case 'quote':
      return el(
        'blockquote',
        {},
        ...blocksOf(b.lines.map((l) => l.replace(QUOTE, ''))).map((x) => blockNode(x, depth + 1)),
      );
    case 'list':
      return listNode(b, depth);
    case 'table':
      return tableNode(b);
    default:
      return el('p', {}, inline(textOf(b)));
  }
}

/* ---- A text that grows ---- */

class MarkdownStream {
  constructor(node) {
    this.node = node;
    this.reset();
  }

  reset() {
    this.node.replaceChildren();
    this.blocks = new Blocks();
    this.read = 0; /* characters given to the blocks, in whole lines */
    this.n = 0; /* characters at the last call */
    this.n_final = 0; /* nodes of complete blocks, */
    this.spent = 0; /* with their descendants */
    this.forget();
  }

  /* Removes the nodes of the open block. */
  forget() {
    while (this.node.childNodes.length > this.n_final) this.node.lastChild.remove();
    this.drawn = 0; /* characters of the open block that were rendered */
    this.tail = null; /* the node for plain text after them */
    this.code = null; /* the text of an open fence */
  }

  addLines(text, over) {
    for (
      let end;
      (end = text.indexOf('\n', this.read)) >= 0 || (over && this.read < text.length);
    ) {
      if (end < 0) end = text.length;
      this.blocks.add(text.slice(this.read, text[end - 1] === '\r' ? end - 1 : end), this.read);
      this.read = end + 1;
    }
    if (over) this.blocks.end();
    if (!this.blocks.complete.length) return;
    this.forget();
    nodesLeft = MAX_NODES - this.spent;
    for (const b of this.blocks.complete.splice(0)) this.node.append(blockNode(b, 0));
    this.spent = MAX_NODES - nodesLeft;
    this.n_final = this.node.childNodes.length;
  }

  /* Shows text, which begins with the text of the last call. over: it is complete. */
  show(text, over) {
    if (this.over && over && text.length === this.n) return;
    if (text.length < this.n || this.over) this.reset();
    this.n = text.length;
    this.over = over;
    this.addLines(text, over);
    const open = this.blocks.open;
    if (over) return;
    if (open && open.kind === 'fence' && !open.closed) return this.showCode(open, text);
    const source = text.slice(open ? open.from : this.read);
    if (source.length < SHORT_BLOCK || source.length > this.drawn * 1.25 || !this.tail) {
      this.forget();
      nodesLeft = MAX_NODES - this.spent;
      for (const b of blocksOf(
        source.split('\n').map((l) => (l.endsWith('\r') ? l.slice(0, -1) : l)),
      ))
        this.node.append(blockNode(b, 0));
      const last = this.node.lastChild;
      this.drawn = source.length;
      if (source.length < SHORT_BLOCK) return;
      this.tail = last && last.tagName === 'P' ? last : this.node.appendChild(el('p'));
    } else this.tail.append(source.slice(this.drawn_to));
    this.drawn_to = source.length;
  }

  showCode(open, text) {
    if (!this.code) {
      this.forget();
      const code = el('code');
      this.node.append(
        el(
          'div',
          { className: 'fence' },
          el('div', {}, el('span', {}, open.lang || 'text')),
          el('pre', { tabIndex: 0 }, code),
        ),
      );
      this.code = new GrowingText(code);
      this.code_from = text.indexOf('\n', open.from) + 1;
    }
    const line = text.slice(Math.max(this.read, this.code_from));
    const end = /^\s*[`~]/.test(line.slice(0, 8))
      ? this.read
      : text.length; /* the line may close the fence */
    this.code.show(text.slice(this.code_from, Math.max(end, this.code_from)));
  }
}
