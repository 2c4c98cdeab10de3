/* render.js - shows Markdown. A worker (worker.js) turns texts into trees; here trees become nodes,
 * and a view shows a text that grows.
 *
 * A model's text is hostile. It is parsed in the worker, which is ended when it makes no progress for
 * DEADLINE_MS: then the text is tried again without formulas and colours, then shown as it is. Nodes
 * are made with createElement from lists of the elements, attributes and styles that are allowed. */

const MAX_RENDERED = 200000; /* characters of a message; the rest is text */
const NODES_MAX = 8000; /* of a message */
const DEADLINE_MS = 1500;
const START_MS = 20000; /* for the worker to read its libraries */
const REDRAW_MS = 60;
const LAG_MS = 700;

/* ---- Nodes of trees ---- */

const words = (text) => new Set(text.split(' '));
const NS_SVG = 'http://www.w3.org/2000/svg',
  NS_MATHS = 'http://www.w3.org/1998/Math/MathML';
const TAGS = words(
  'p h1 h2 h3 h4 h5 h6 ul ol li blockquote hr br em strong del code pre a span div table thead tbody tr th td ' +
    'details summary',
);
const SVG_TAGS = words('svg path line');
const MATHS_TAGS = words(
  'math semantics annotation mrow mi mn mo ms mtext mspace mover munder munderover msub msup msubsup ' +
    'mmultiscripts mprescripts none mfrac mroot msqrt mtable mtr mtd mlabeledtr mstyle mpadded mphantom ' +
    'menclose merror mglyph',
);
const ATTRIBUTES = words(
  'class title aria-hidden start open colspan width height viewBox preserveAspectRatio d x1 y1 x2 y2 stroke-width ' +
    'display encoding mathvariant stretchy fence separator lspace rspace minsize maxsize depth voffset ' +
    'scriptlevel displaystyle columnalign columnspacing columnlines rowspacing rowlines rowalign side accent ' +
    'accentunder linethickness mathcolor mathbackground mathsize notation symmetric largeop movablelimits form',
);
const STYLES = words(
  'height width minWidth maxWidth top bottom left right position verticalAlign display color backgroundColor ' +
    'margin marginLeft marginRight marginTop marginBottom padding paddingLeft paddingRight fontSize ' +
    'borderColor borderStyle borderWidth borderTopWidth borderRightWidth borderBottomWidth borderLeftWidth ' +
    'borderTopStyle borderRightStyle borderBottomStyle borderLeftStyle textShadow fontWeight fontStyle',
);

function linkTo(href) {
  try {
    const url = new URL(href);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function nodeOf(tree, ns) {
  if (typeof tree === 'string') return document.createTextNode(tree);
  const [tag, attrs, ...children] = tree;
  if (tag === 'fence') return fenceNode(attrs, children);
  if (tag === 'ref' || tag === 'note') return noteNode(tag, attrs.label, children);
  if (tag === 'box')
    return el('input', {
      type: 'checkbox',
      disabled: true,
      checked: attrs.checked === true,
      'aria-label': attrs.checked ? 'done' : 'open',
    });
  let node;
  if (SVG_TAGS.has(tag)) node = document.createElementNS((ns = NS_SVG), tag);
  else if (MATHS_TAGS.has(tag)) node = document.createElementNS((ns = NS_MATHS), tag);
  else if (TAGS.has(tag)) node = document.createElement(tag);
  else node = document.createDocumentFragment();
  for (const [key, value] of Object.entries(attrs || {})) {
    if (key === 'style')
      for (const [name, x] of Object.entries(value))
        if (STYLES.has(name)) node.style[name] = String(x);
    if (ATTRIBUTES.has(key) && value !== null && node.setAttribute) node.setAttribute(key, value);
  }
  if (tag === 'a') {
    const href = linkTo(attrs.href);
    if (href) Object.assign(node, { href, target: '_blank', rel: 'noopener noreferrer' });
  }
  for (const c of children) node.append(nodeOf(c, ns));
  return tag === 'table'
    ? el('div', { className: 'wide', tabIndex: 0, role: 'region', 'aria-label': 'Table' }, node)
    : node;
}

/* A footnote, or a reference to one. Each leads to the other. */
function noteNode(tag, label, children) {
  const to = tag === 'ref' ? 'note' : 'ref',
    leap = (e) => {
      for (const node of e.currentTarget.closest('.md').querySelectorAll('.leap'))
        if (node.leads === to + label) {
          node.scrollIntoView({ block: 'nearest' });
          return node.focus();
        }
    };
  const button = el(
    'button',
    {
      type: 'button',
      className: 'leap',
      'aria-label': `${tag === 'ref' ? 'Footnote' : 'Back from footnote'} ${label}`,
      onclick: leap,
    },
    label,
  );
  button.leads = tag + label;
  return tag === 'ref'
    ? el('sup', {}, button)
    : el('div', { className: 'note-of' }, button, el('span', {}, ...children.map((c) => nodeOf(c))));
}

function fenceNode({ lang, code }, children) {
  const pre = el('pre', { tabIndex: 0 }, el('code', {}, ...children.map((c) => nodeOf(c))));
  return el(
    'div',
    { className: 'fence' },
    el(
      'div',
      {},
      el('span', {}, lang || 'text'),
      code === undefined ? null : copyButton(() => code),
    ),
    pre,
  );
}

/* ---- The worker, which has one job at a time ---- */

const renderer = {
  worker: null,
  ready: false,
  broken: false,
  queue: [],
  now: null /* the job that the worker has */,
  timer: 0,
  n_jobs: 0,

  start() {
    try {
      const source = $('worker').textContent.replaceAll('\ue000', '<');
      const url = URL.createObjectURL(new Blob([source], { type: 'text/javascript' }));
      this.worker = new Worker(url);
      URL.revokeObjectURL(url);
      this.worker.onmessage = (e) => this.take(e.data);
      this.worker.onerror = (e) => {
        e.preventDefault();
        this.late();
      };
      this.wait(START_MS);
    } catch {
      this.give_up();
    }
  },
  stop() {
    clearTimeout(this.timer);
    if (this.worker) this.worker.terminate();
    this.worker = null;
    this.ready = false;
  },
  give_up() {
    this.stop();
    this.broken = true;
    toast('This browser does not run the reader of Markdown: messages are shown as plain text.');
    if (this.now) this.now.fail();
    for (const job of this.queue.splice(0)) job.fail();
    this.now = null;
  },
  wait(ms) {
    const due = performance.now() + ms;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      /* If this page itself stood still, an answer of the worker may be waiting. */
      if (performance.now() > due + 500) this.wait(ms);
      else this.late();
    }, ms);
  },
  /* The worker did not start, failed, or made no progress. */
  late() {
    const job = this.now;
    if (!this.ready) return this.give_up();
    this.stop();
    this.now = null;
    if (job) job.fail();
    this.next();
  },
  /* job: {input, step(message), fail(), wanted(), drop()}. The newest is done first: what grows, and
   * the end of a conversation, where its reader is. */
  add(job) {
    if (this.broken) return job.fail();
    this.queue.push(job);
    queueMicrotask(() => this.next()); /* the job's node may be put into the page after this */
  },
  next() {
    if (this.now || this.broken) return;
    if (!this.worker) return this.queue.length ? this.start() : undefined;
    if (!this.ready) return;
    while (this.queue.length && !this.queue.at(-1).wanted()) this.queue.pop().drop();
    this.now = this.queue.pop() || null;
    clearTimeout(this.timer);
    if (!this.now) return;
    this.now.id = ++this.n_jobs;
    this.worker.postMessage(Object.assign({ id: this.now.id }, this.now.input));
    this.wait(DEADLINE_MS);
  },
  take(message) {
    if (message.ready) {
      this.ready = true;
      clearTimeout(this.timer);
    } else if (this.now && this.now.id === message.id) {
      const job = this.now;
      if (message.done) {
        clearTimeout(this.timer);
        this.now = null;
      } else this.wait(DEADLINE_MS);
      try {
        job.step(message);
      } catch {
        job.step = () => {}; /* a tree too deep for this thread's stack */
        job.fail();
      }
    }
    this.next();
  },
};

/* ---- A text that grows ---- */

/* Shows a text in a node. Complete blocks are made once. The last block is made again at most every
 * REDRAW_MS, and at most in a third of the time. */
class MarkdownView {
  constructor(node) {
    this.node = node;
    this.reset('');
  }

  reset(text) {
    clearTimeout(this.timer);
    this.generation = {}; /* jobs of an older one are ignored */
    this.text = text;
    this.over = false;
    this.busy = this.dirty = false;
    this.n_final = 0; /* characters whose blocks are complete, */
    this.n_nodes = 0; /* and their nodes */
    this.refs = {};
    this.left = NODES_MAX;
    this.level = 0; /* 1: without formulas and colours, 2: plain */
    this.fence = null;
    this.tail = null; /* text that has not been rendered */
    this.next_ms = 0;
    this.drawn = 0; /* characters that stand there, */
    this.drawn_ms = -LAG_MS; /* and since when */
    this.settled = null; /* the text that is shown completely */
    this.node.replaceChildren();
  }

  /* over: the text is complete. */
  show(text, over) {
    text = text.replace(/\r\n?/g, '\n');
    if (over && this.settled === text) return;
    if (this.over || this.settled !== null || !text.startsWith(this.text)) this.reset(text);
    this.text = text;
    this.over = over;
    if (this.level === 2 || renderer.broken) return this.plain();
    if (this.fence && !over && this.growFence()) return;
    if (this.tail && this.n_final >= MAX_RENDERED) return this.growTail();
    /* Text that the worker has not read yet is shown as it is. */
    if (this.tail) this.tail.show(text.slice(this.tail.from));
    else if (text.length > this.drawn && performance.now() > this.drawn_ms + LAG_MS)
      this.showTail(this.drawn);
    this.request();
  }

  request() {
    if (this.busy) {
      this.dirty = true;
      return;
    }
    clearTimeout(this.timer);
    const wait = this.over ? 0 : this.next_ms - performance.now();
    if (wait > 0) this.timer = setTimeout(() => this.post(), wait);
    else this.post();
  }

  post() {
    const generation = this.generation,
      start = performance.now(),
      end = Math.min(this.text.length, MAX_RENDERED),
      over = this.over || end < this.text.length,
      n_final = this.n_final;
    this.busy = true;
    this.dirty = false;
    let ms = 0;
    const mine = () => generation === this.generation;
    renderer.add({
      input: {
        text: this.text.slice(n_final, end),
        over,
        refs: this.refs,
        left: this.left,
        plain: this.level > 0,
      },
      wanted: () => mine() && this.node.isConnected,
      drop: () => {
        if (mine()) this.busy = false;
      },
      fail: () => {
        if (!mine()) return;
        this.busy = false;
        this.level++;
        if (this.level > 1 || renderer.broken) this.plain();
        else this.request();
      },
      step: (m) => {
        if (!mine()) return;
        const from = performance.now();
        if (m.trees) this.addBlocks(m.trees, n_final + m.end);
        else if (n_final && over && Object.keys(m.refs).length) return this.again();
        else this.finish(m, over, end);
        if (m.done) this.node.offsetHeight; /* its layout counts */
        ms += performance.now() - from;
        if (!m.done) return;
        this.next_ms =
          performance.now() + Math.max(REDRAW_MS, 2 * (performance.now() - start), 3 * ms);
        this.busy = false;
        if (this.dirty) this.request();
      },
    });
  }

  /* A definition of a link may stand behind blocks that use it: the text is read again as a whole. */
  again() {
    const { text, over } = this;
    this.reset(text);
    this.over = over;
    this.request();
  }

  /* Removes the nodes of the last block. */
  forget() {
    while (this.node.childNodes.length > this.n_nodes) this.node.lastChild.remove();
    this.tail = this.fence = null;
  }

  addBlocks(trees, n_final) {
    this.forget();
    for (const t of trees) this.node.append(nodeOf(t));
    this.n_nodes = this.node.childNodes.length;
    this.n_final = this.drawn = n_final;
    this.drawn_ms = performance.now();
    if (this.node.grown) this.node.grown();
  }

  finish(m, over, end) {
    this.refs = m.refs;
    this.left = m.left;
    this.forget();
    this.drawn = end;
    this.drawn_ms = performance.now();
    if (m.open) this.node.append(nodeOf(m.open));
    if (m.fence >= 0) {
      this.fence = { from: this.n_final + m.fence, mark: m.mark, lang: m.lang, read: 0 };
      const node = fenceNode({ lang: m.lang }, []);
      this.node.append(node);
      this.fence.code = new GrowingText(node.querySelector('code'));
      this.growFence();
    }
    if (over) {
      this.n_final = end;
      this.n_nodes = this.node.childNodes.length;
      if (this.text.length > end)
        this.showTail(end, 'This message is long. From here on it is shown as plain text.');
      if (this.over) this.settled = this.text;
    }
    if (this.node.grown) this.node.grown();
  }

  /* Shows the code of an open fence. False: a line of it may close the fence. */
  growFence() {
    const f = this.fence,
      code = this.text.slice(f.from),
      line = code.lastIndexOf('\n') + 1,
      close = new RegExp('^ {0,3}' + f.mark[0] + '{' + f.mark.length + ',}[ \\t]*\\n', 'm');
    if (close.test(code.slice(f.read))) return false;
    f.read = Math.max(0, code.lastIndexOf('\n', line - 2) + 1);
    f.code.show(/^ {0,3}[`~]/.test(code.slice(line, line + 8)) ? code.slice(0, line) : code);
    return true;
  }

  showTail(from, why) {
    const node = el('div', { className: 'raw' });
    if (why) this.node.append(el('p', { className: 'note' }, why));
    this.node.append(node);
    this.tail = new GrowingText(node);
    this.tail.from = from;
    this.tail.show(this.text.slice(from));
  }

  growTail() {
    this.tail.show(this.text.slice(this.tail.from));
    if (this.over) this.settled = this.text;
  }

  /* The text is shown as it is, from the first block on that is not complete. */
  plain() {
    if (!this.tail || this.tail.from !== this.n_final) {
      this.forget();
      const slow =
        !renderer.broken && 'The rest takes too long to lay out. It is shown as plain text.';
      this.showTail(this.n_final, slow);
    }
    this.growTail();
    if (this.node.grown) this.node.grown();
  }
}
