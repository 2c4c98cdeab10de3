/* worker.js - Markdown to trees, in a worker. render.js posts texts, makes nodes of the trees, and
 * ends a worker that takes too long.
 *
 * A tree is a string or [tag, attributes or null, child, ...]. No HTML is made anywhere.
 *
 * markdown-it parses the blocks and the text in them. KaTeX draws formulas with the functions of a
 * document, of which there is a small one here. highlight.js marks code. All three are in front of
 * this file, unmodified.
 *
 * Limits are per message. What exceeds one is shown as its source. */
'use strict';

const MAX_NESTING = 40;
const MAX_COLUMNS = 64; /* a browser's time for a table grows with rows times columns */
const MAX_CELLS = 5000;
const MAX_FORMULA = 4000; /* characters: KaTeX takes 0.1 s for 2,000 */
const MAX_FORMULA_LINES = 100;
const MAX_MATHS_MS = 600;
/* highlight.js takes quadratic time for long words, and some languages for long lines. */
const MAX_CODE = 20000;
const MAX_CODE_LINE = 1000;
const MAX_HIGHLIGHT_MS = 400;
const BATCH_NODES = 600; /* render.js adds them to the page at once */
const BATCH_MS = 100;
const OPEN_NODES = 2500; /* of a block that is made again while it grows */
const LEAP_NODES = 2; /* in a footnote, or in a reference to one */
const FENCE_NODES = 5; /* around the code of a fence: its head, language, button */

/* ---- Formulas ---- */

/* The place of the next closing mark at or after `from`, by a function that looks for it. Two
 * marks and all places between them have the same answer, so a text is searched once. */
class Closings {
  constructor(find) {
    this.find = find;
    this.from = 0;
    this.at = -2;
  }
  next(from) {
    if (this.at !== -2 && from >= this.from && (this.at < 0 || from <= this.at)) return this.at;
    this.from = from;
    return (this.at = this.find(from));
  }
}

const isSpace = (c) => c === ' ' || c === '\n' || c === '\t' || c === undefined;
const isDigit = (c) => c >= '0' && c <= '9';

/* A $ closes a formula unless it has space before it, a digit behind it, or a backslash. */
function closingDollar(text, from) {
  for (let k = text.indexOf('$', from); k >= 0; k = text.indexOf('$', k + 1))
    if (
      !isSpace(text[k - 1]) &&
      text[k - 1] !== '\\' &&
      text[k - 1] !== '$' &&
      text[k + 1] !== '$' &&
      !isDigit(text[k + 1])
    )
      return k;
  return -1;
}

/* The Closings of a text, kept in env while the text is parsed. */
function closings(env, text, mark) {
  if (!env.maths || env.maths.text !== text) env.maths = { text, marks: {} };
  const marks = env.maths.marks;
  if (!marks[mark])
    marks[mark] = new Closings(
      mark === '$' ? (k) => closingDollar(text, k) : (k) => text.indexOf(mark, k),
    );
  return marks[mark];
}

/* \( \), \[ \], $ $ and $$ $$ in a line of text. */
function mathsInline(state, silent) {
  const { src, pos } = state;
  let open, close;
  if (src[pos] === '\\' && src[pos + 1] === '(') [open, close] = ['\\(', '\\)'];
  else if (src[pos] === '\\' && src[pos + 1] === '[') [open, close] = ['\\[', '\\]'];
  else if (src[pos] !== '$' || src[pos - 1] === '$') return false;
  else if (src[pos + 1] === '$') open = close = '$$';
  else if (isSpace(src[pos + 1])) return false;
  else open = close = '$';
  const from = pos + open.length,
    end = closings(state.env, src, close).next(close === '$' ? from + 1 : from);
  if (end < 0 || end - from > MAX_FORMULA || end + close.length > state.posMax) return false;
  const content = src.slice(from, end);
  if (!content.trim()) return false;
  if (!silent) {
    const token = state.push('maths', '', 0);
    token.content = content;
    token.markup = src.slice(pos, end + close.length);
    token.meta = { display: open === '$$' || open === '\\[' };
  }
  state.pos = end + close.length;
  return true;
}

/* $$ $$ and \[ \] that have their lines to themselves. */
function mathsBlock(state, start, end, silent) {
  const line = (k) => state.src.slice(state.bMarks[k] + state.tShift[k], state.eMarks[k]);
  const first = line(start),
    close = first.startsWith('$$') ? '$$' : first.startsWith('\\[') ? '\\]' : null;
  if (!close || state.sCount[start] - state.blkIndent >= 4) return false;
  const begin = state.bMarks[start] + state.tShift[start] + 2;
  if (closings(state.env, state.src, close).next(begin) < 0) return false;
  let k = start,
    n = 0;
  for (; k < end && k - start < MAX_FORMULA_LINES; k++) {
    if (k > start && line(k) && state.sCount[k] < state.blkIndent) return false;
    const text = k === start ? first.slice(2) : line(k),
      at = text.indexOf(close);
    n += text.length;
    if (n > MAX_FORMULA) return false;
    if (at < 0) continue;
    if (text.slice(at + 2).trim()) return false;
    break;
  }
  if (k >= end || k - start >= MAX_FORMULA_LINES) return false;
  const source = state.getLines(start, k + 1, state.blkIndent, false).trim();
  if (!source.slice(2, -2).trim()) return false;
  if (silent) return true;
  const token = state.push('maths', '', 0);
  token.content = source.slice(2, -2);
  token.markup = source;
  token.meta = { display: true, alone: true };
  token.map = [start, k + 1];
  state.line = k + 1;
  return true;
}

/* The part of a document that KaTeX draws with. */
class Shape {
  constructor(tag) {
    this.tag = tag;
    this.props = {};
    this.style = {};
    this.children = [];
    this.className = '';
  }
  setAttribute(key, value) {
    this.props[key] = String(value);
  }
  appendChild(child) {
    this.children.push(child);
    return child;
  }
  set textContent(text) {
    this.children = text ? [String(text)] : [];
  }
  tree() {
    const props = Object.assign({}, this.props);
    if (this.className) props.class = this.className;
    if (Object.keys(this.style).length) props.style = Object.assign({}, this.style);
    return [this.tag, props, ...this.children.flatMap(shapeTrees)];
  }
}
function shapeTrees(s) {
  if (typeof s === 'string') return [s];
  return s.tag === null ? s.children.flatMap(shapeTrees) : [s.tree()];
}
self.document = {
  compatMode: 'CSS1Compat',
  createElement: (tag) => new Shape(tag),
  createElementNS: (ns, tag) => new Shape(tag),
  createDocumentFragment: () => new Shape(null),
  createTextNode: (text) => String(text),
};

/* The tree of a formula. Its source, if KaTeX fails, or takes too long with those before it. */
function mathsTree(job, token) {
  const { display, alone } = token.meta,
    source = [alone ? 'p' : 'span', { class: 'tex' }, token.markup],
    start = performance.now();
  if (job.plain || job.maths_ms > MAX_MATHS_MS || token.content.length > MAX_FORMULA) return source;
  try {
    const root = new Shape('root');
    katex.render(token.content, root, {
      displayMode: display,
      throwOnError: false,
      errorColor: 'var(--bad)',
      trust: false,
      strict: 'ignore',
      maxSize: 20,
      maxExpand: 1000,
      output: 'htmlAndMathml',
      macros: {},
    });
    const trees = root.children.flatMap(shapeTrees);
    job.left -= count(trees);
    if (job.left < 0) return source;
    if (trees.length === 1 && /katex-error/.test(trees[0][1].class))
      return [alone ? 'p' : 'span', { class: 'tex bad', title: trees[0][1].title }, token.markup];
    return [alone ? 'div' : 'span', { class: display ? 'formula' : 'maths' }, ...trees];
  } catch {
    return source; /* RangeError: the formula is nested too deep */
  } finally {
    job.maths_ms += performance.now() - start;
  }
}

function count(trees) {
  let n = 0;
  for (const t of trees) if (typeof t !== 'string') n += 1 + count(t.slice(2));
  return n;
}

/* ---- Code ---- */

/* highlight.js's names of marks, up to the first dot -> ours. */
const MARKS = {
  keyword: 'k',
  literal: 'k',
  type: 't',
  built_in: 't',
  class: 't',
  string: 's',
  char: 's',
  regexp: 's',
  subst: 'p',
  comment: 'c',
  quote: 'c',
  meta: 'c',
  doctag: 'c',
  number: 'n',
  symbol: 'n',
  link: 's',
  bullet: 'n',
  code: 's',
  title: 'f',
  section: 'f',
  name: 'k',
  attr: 'v',
  attribute: 'v',
  property: 'v',
  variable: 'v',
  'selector-tag': 'k',
  'selector-id': 'f',
  'selector-class': 'f',
  'selector-attr': 'v',
  'selector-pseudo': 'v',
  'template-variable': 'v',
  addition: 'add',
  deletion: 'del',
  strong: 'strong',
  emphasis: 'em',
};

function codeTrees(job, code, lang) {
  if (job.plain || !lang || code.length > MAX_CODE || job.highlight_ms > MAX_HIGHLIGHT_MS)
    return [code];
  if (!hljs.getLanguage(lang)) return [code];
  for (let at = 0, end; at < code.length; at = end + 1) {
    end = code.indexOf('\n', at);
    if (end < 0) end = code.length;
    if (end - at > MAX_CODE_LINE) return [code];
  }
  const start = performance.now();
  try {
    const made = hljs.highlight(code, { language: lang, ignoreIllegals: true });
    const trees = marked(made._emitter.rootNode.children);
    job.left -= count(trees);
    return job.left < 0 ? [code] : trees;
  } catch {
    return [code];
  } finally {
    job.highlight_ms += performance.now() - start;
  }
}

function marked(nodes) {
  return nodes.flatMap((node) => {
    if (typeof node === 'string') return [node];
    const mark = MARKS[(node.scope || '').split('.')[0]],
      inner = marked(node.children);
    return mark && mark !== 'p' ? [['span', { class: mark }, ...inner]] : inner;
  });
}

/* ---- Parts that open, and footnotes ---- */

const MAX_SUMMARY_LINES = 6;

/* The text of a line without its indent. */
const lineOf = (state, k) => state.src.slice(state.bMarks[k] + state.tShift[k], state.eMarks[k]);

/* The line with the </details> that belongs to the one before line `from`; `end`: there is none yet,
 * and the part goes on to there. */
function endOfDetails(state, from, end) {
  let depth = 1,
    fence = null;
  for (let k = from; k < end; k++) {
    const text = lineOf(state, k),
      mark = /^(```+|~~~+)/.exec(text);
    if (mark) fence = fence === null ? mark[1] : mark[1].startsWith(fence) ? null : fence;
    if (mark || fence !== null) continue;
    if (/^<details[\s>]/i.test(text)) depth++;
    if (/<\/details>\s*$/i.test(text) && --depth === 0) return k;
  }
  return end;
}

/* <details> with its <summary>, each at the beginning of a line. */
function details(state, start, end, silent) {
  const first = lineOf(state, start);
  if (!/^<details(\s|>)/i.test(first) || state.sCount[start] - state.blkIndent >= 4) return false;
  let head = first;
  for (let k = start + 1; k < end && k < start + MAX_SUMMARY_LINES; k++)
    head += '\n' + lineOf(state, k);
  const open =
    /^<details(\s+open(?:\s*=\s*"[^"\n]*")?)?\s*>\s*(?:<summary>([^]*?)<\/summary>[ \t]*)?/i.exec(head);
  if (!open) return false;
  if (silent) return true;
  const last = start + open[0].trimEnd().split('\n').length - 1,
    rest = /\n\s*$/.test(open[0]) ? '' : head.slice(open[0].length).split('\n')[0],
    same = rest.replace(/<\/details>\s*$/i, ''), /* text in the line of the tags */
    over = same !== rest,
    close = over ? last : endOfDetails(state, last + 1, end);
  let token = state.push('details_open', 'details', 1);
  token.map = [start, Math.min(close + 1, end)];
  token.meta = { open: !!open[1] };
  state.push('summary_open', 'summary', 1);
  inlineToken(state, (open[2] || 'Details').replace(/<\/?[a-z][a-z0-9]*\s*>/gi, '').trim());
  state.push('summary_close', 'summary', -1);
  if (same.trim()) {
    state.push('paragraph_open', 'p', 1);
    inlineToken(state, same.trim());
    state.push('paragraph_close', 'p', -1);
  }
  if (!over) {
    /* What stands before the closing tag in its line belongs to the part. */
    const mark = close < end && state.eMarks[close],
      before = close < end && lineOf(state, close).replace(/<\/details>\s*$/i, '');
    let to = close;
    if (before) {
      state.eMarks[close] = state.bMarks[close] + state.tShift[close] + before.length;
      to = close + 1;
    }
    const kept = [state.lineMax, state.parentType];
    state.lineMax = to;
    state.parentType = 'blockquote';
    state.md.block.tokenize(state, last + 1, to);
    [state.lineMax, state.parentType] = kept;
    if (before) state.eMarks[close] = mark;
  }
  state.push('details_close', 'details', -1);
  state.line = Math.min(close + 1, end);
  return true;
}

function inlineToken(state, text) {
  const token = state.push('inline', '', 0);
  token.content = text;
  token.children = [];
}

/* Labels are numbers: [^a-z] is more often a part of a regular expression. */
const NOTE = /^\[\^((?:fn|note)?-?\d{1,3})\]/i;

function noteInline(state, silent) {
  if (state.src[state.pos] !== '[' || state.src[state.pos + 1] !== '^') return false;
  const m = NOTE.exec(state.src.slice(state.pos, state.pos + 16));
  if (!m) return false;
  if (!silent) state.push('ref', '', 0).content = m[1];
  state.pos += m[0].length;
  return true;
}

/* "[^1]: text", up to the next blank line or note. */
function noteBlock(state, start, end, silent) {
  const m = NOTE.exec(lineOf(state, start).slice(0, 16)),
    first = m && lineOf(state, start).slice(m[0].length);
  if (!m || first[0] !== ':' || state.sCount[start] - state.blkIndent >= 4) return false;
  if (silent) return true;
  let text = first.slice(1),
    k = start + 1;
  for (; k < end && !state.isEmpty(k) && state.sCount[k] >= state.blkIndent; k++) {
    if (NOTE.test(lineOf(state, k).slice(0, 16))) break;
    text += '\n' + lineOf(state, k);
  }
  const token = state.push('note_open', 'note', 1);
  token.map = [start, k];
  token.meta = { label: m[1] };
  inlineToken(state, text.trim());
  state.push('note_close', 'note', -1);
  state.line = k;
  return true;
}

/* ---- Tokens to trees ---- */

const OPENED = {
  paragraph_open: 'p',
  blockquote_open: 'blockquote',
  bullet_list_open: 'ul',
  ordered_list_open: 'ol',
  list_item_open: 'li',
  table_open: 'table',
  thead_open: 'thead',
  tbody_open: 'tbody',
  tr_open: 'tr',
  th_open: 'th',
  td_open: 'td',
  em_open: 'em',
  strong_open: 'strong',
  s_open: 'del',
  link_open: 'a',
  details_open: 'details',
  summary_open: 'summary',
  note_open: 'note',
};

/* Builds a tree from tokens. A node too many leaves its text to the node around it. */
class Builder {
  constructor(job) {
    this.job = job;
    this.stack = [['root', null]];
  }
  top() {
    return this.stack[this.stack.length - 1];
  }
  text(s) {
    const top = this.top(),
      k = top.length - 1;
    if (k > 1 && typeof top[k] === 'string') top[k] += s;
    else if (s) top.push(s);
  }
  add(tree) {
    if (this.job.left-- > 0) this.top().push(tree);
    else this.text(tree.slice(2).join(''));
  }
  open(tag, attrs) {
    const node = [tag, attrs];
    if (this.job.left-- > 0) {
      this.top().push(node);
      this.stack.push(node);
    } else this.stack.push(this.top());
  }
  close() {
    if (this.stack.length > 1) this.stack.pop();
  }

  tokens(list) {
    for (const t of list) this.token(t);
  }
  token(t) {
    const tag = OPENED[t.type];
    if (t.hidden) return;
    if (tag === 'note') this.job.left -= LEAP_NODES;
    if (tag) return this.open(tag, this.attrsOf(t, tag));
    if (t.type === 'heading_open') return this.open(t.tag, null);
    if (t.nesting < 0) {
      this.close();
      return;
    }
    switch (t.type) {
      case 'inline':
        return this.tokens(t.children);
      case 'text':
        return this.text(t.content);
      case 'softbreak':
        return this.text('\n');
      case 'hardbreak':
        return this.add(['br', null]);
      case 'hr':
        return this.add(['hr', null]);
      case 'code_inline':
        return this.add(['code', null, t.content]);
      case 'box':
        return this.add(['box', { checked: t.meta.checked }]);
      case 'maths':
        return this.add(mathsTree(this.job, t));
      case 'ref':
        this.job.left -= LEAP_NODES;
        return this.add(['ref', { label: t.content }, `[^${t.content}]`]);
      case 'image':
        return this.add(this.picture(t));
      case 'fence':
      case 'code_block': {
        const lang = t.info.trim().split(/\s/)[0].slice(0, 40),
          code = t.content.replace(/\n$/, '');
        this.job.left -= FENCE_NODES;
        return this.add(['fence', { lang, code }, ...codeTrees(this.job, code, lang)]);
      }
      default:
        return this.text(t.content);
    }
  }
  /* A picture is never fetched: its words are shown, and its address as a link. */
  picture(t) {
    const words = t.children.map((c) => c.content).join('') || 'picture',
      href = t.attrGet('src');
    if (this.stack.some((node) => node[0] === 'a')) return ['span', null, words];
    return ['a', { class: 'picture', href, title: href }, words];
  }
  attrsOf(t, tag) {
    if (tag === 'a') return { href: t.attrGet('href'), title: t.attrGet('title') };
    if (tag === 'details') return t.meta.open ? { open: '' } : null;
    if (tag === 'note') return t.meta;
    if (tag === 'ol') return { start: t.attrGet('start') };
    if (tag === 'li' && t.meta && t.meta.task) return { class: 'task' };
    if (tag === 'th' || tag === 'td') {
      const style = t.attrGet('style') || '';
      return style.endsWith('right')
        ? { class: 'right' }
        : style.endsWith('center')
          ? { class: 'mid' }
          : null;
    }
    return null;
  }
}

/* "[ ] " and "[x] " at the beginning of a list's item are boxes. */
function taskBoxes(state) {
  const list = state.tokens;
  for (let k = 2; k < list.length; k++) {
    if (list[k].type !== 'inline' || list[k - 2].type !== 'list_item_open') continue;
    const first = list[k].children[0],
      box =
        first &&
        first.type === 'text' &&
        /^\[([ xX])\]\s/.exec(first.content + (list[k].children[1] ? '' : ' '));
    if (!box) continue;
    const token = new state.Token('box', '', 0);
    token.meta = { checked: box[1] !== ' ' };
    first.content = first.content.slice(4);
    list[k].children.unshift(token);
    list[k - 2].meta = { task: true };
  }
}

/* ---- Parsing ---- */

function parser(rules) {
  const md = markdownit({
    html: false,
    linkify: true,
    typographer: false,
    maxNesting: MAX_NESTING,
  });
  md.validateLink = (url) => /^(https?:\/\/|mailto:)/i.test(url.trim());
  md.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
  md.inline.ruler.before('escape', 'maths', mathsInline);
  const alt = ['paragraph', 'reference', 'blockquote', 'list'];
  md.block.ruler.before('table', 'maths', mathsBlock, { alt });
  md.block.ruler.before('table', 'details', details, { alt });
  md.block.ruler.before('reference', 'note', noteBlock, { alt });
  md.inline.ruler.before('link', 'note', noteInline);
  md.core.ruler.push('boxes', taskBoxes);
  md.core.ruler.enableOnly(rules);
  /* CommonMark does not end **this:** before a letter, nor emphasis in text without spaces. Models
   * mean it. So * opens before everything but space, and closes behind everything but space. */
  const scan = md.inline.State.prototype.scanDelims;
  md.inline.State = class extends md.inline.State {
    scanDelims(start, split) {
      const run = scan.call(this, start, split);
      if (this.src[start] !== '*') return run;
      const before = this.src[start - 1],
        after = this.src[start + run.length];
      run.can_open = start + run.length < this.posMax && !/\s/.test(after);
      run.can_close = start > 0 && !/\s/.test(before);
      return run;
    }
  };
  return md;
}

const blockParser = parser(['normalize', 'block']);
const textParser = parser(['inline', 'linkify', 'text_join', 'boxes']);

/* markdown-it drops what is nested deeper than its limit, and a browser stops for a table of many
 * cells. Such blocks are shown as text. */
function tooMuch(tokens) {
  let columns = 0,
    cells = 0;
  for (const t of tokens) {
    if (t.level >= MAX_NESTING - 1) return true;
    if (t.type === 'th_open' && ++columns > MAX_COLUMNS) return true;
    if (t.type === 'table_close') columns = 0;
    if ((t.type === 'td_open' || t.type === 'th_open') && ++cells > MAX_CELLS) return true;
  }
  return false;
}

/* The tree of one top-level block. */
function blockTree(job, tokens, env, source) {
  const builder = new Builder(job);
  if (tooMuch(tokens)) return ['pre', { class: 'raw' }, source];
  const state = new textParser.core.State('', textParser, env);
  state.tokens = tokens;
  textParser.core.process(state);
  builder.tokens(tokens);
  return builder.stack[0].length === 3
    ? builder.stack[0][2]
    : ['div', null, ...builder.stack[0].slice(2)];
}

/* ---- Jobs ----
 *
 * In:  {id, text, over, refs, left, plain}. text: a message from its first unfinished block on; over:
 *      the message is complete; refs: link definitions of blocks before; left: nodes that may be
 *      made; plain: without formulas and colours.
 * Out: {id, trees, end}, several times: complete blocks, and where in the text they end.
 *      {id, done: true, open, fence, refs, left}: the unfinished block's tree, or where the code of a
 *      fence begins whose end has not come. */

function startsOfLines(text) {
  const starts = [0];
  for (let k = text.indexOf('\n'); k >= 0; k = text.indexOf('\n', k + 1)) starts.push(k + 1);
  starts.push(text.length);
  return starts;
}

/* Where the code of the fence begins that token opened, if nothing closes it; else -1. */
function openFence(token, text, starts) {
  if (token.type !== 'fence') return -1;
  const lines = text.split('\n').slice(token.map[0]),
    mark = /^ {0,3}(`{3,}|~{3,})/.exec(lines[0]);
  if (!mark || lines.length < 2) return -1;
  while (lines.length > 2 && !lines[lines.length - 1].trim()) lines.pop();
  const last = /^ {0,3}(`{3,}|~{3,})[ \t]*$/.exec(lines[lines.length - 1]);
  if (last && last[1][0] === mark[1][0] && last[1].length >= mark[1].length) return -1;
  return starts[token.map[0] + 1];
}

function work(job) {
  const { id, text, over } = job,
    env = { references: Object.assign({}, job.refs) },
    starts = startsOfLines(text),
    state = new blockParser.core.State(text, blockParser, env),
    groups = [];
  job.maths_ms = job.highlight_ms = 0;
  let trees = [],
    budget = job.left - BATCH_NODES,
    told = 0,
    posted = performance.now();
  blockParser.core.process(state);
  for (let from = 0, k = 0; k < state.tokens.length; k++)
    if (state.tokens[k].level === 0 && state.tokens[k].nesting <= 0) {
      groups.push(state.tokens.slice(from, k + 1));
      from = k + 1;
    }
  const out = { id, done: true, open: null, fence: -1, lang: '', refs: env.references };
  groups.forEach((tokens, k) => {
    const map = tokens[0].map,
      at = starts[map[0]],
      end = k + 1 < groups.length ? starts[groups[k + 1][0].map[0]] : text.length,
      own = { references: env.references };
    if (k + 1 === groups.length && !over) {
      out.fence = openFence(tokens[0], text, starts);
      if (out.fence >= 0) {
        out.lang = tokens[0].info.trim().split(/\s/)[0].slice(0, 40);
        out.mark = tokens[0].markup;
      } else {
        const growing = Object.assign({}, job, { left: Math.min(job.left, OPEN_NODES) });
        out.open = blockTree(growing, tokens, own, text.slice(at, end));
      }
      return;
    }
    trees.push(blockTree(job, tokens, own, text.slice(at, end)));
    told = end;
    if (job.left < budget || performance.now() > posted + BATCH_MS) {
      postMessage({ id, trees, end });
      posted = performance.now();
      trees = [];
      budget = job.left - BATCH_NODES;
    }
  });
  if (trees.length) postMessage({ id, trees, end: told });
  out.left = Math.max(job.left, 0);
  postMessage(out);
}

onmessage = (e) => work(e.data);
postMessage({ ready: true });
