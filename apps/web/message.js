/* message.js - the messages of a conversation on the screen. */

/* message -> its node */
const views = new WeakMap();
/* messages that are long and were opened */
const opened = new WeakSet();
const LONG_QUESTION = 1500; /* characters; longer messages are folded, */
const LONG_ANSWER = 12000; /* answers only where others follow */
const MANY_LINES = 24;

const number = (n) => (n >= 100 ? String(Math.round(n)) : n.toPrecision(2));
const seconds = (ms) =>
  ms < 60000
    ? (ms / 1000).toFixed(ms < 9950 ? 1 : 0) + ' s'
    : Math.floor(ms / 60000) + ' min ' + Math.round((ms % 60000) / 1000) + ' s';

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function costNode(m) {
  const s = m.stats,
    prompt = s.prompt || 0,
    cached = Math.min(s.cached || 0, prompt);
  const words = [`${s.generated} tokens`];
  if (s.rate) words.push(`${number(s.rate)}/s`);
  if (prompt) words.push(cached ? `${cached} of ${prompt} reused` : `${prompt} read`);
  const node = el(
    'span',
    {
      className: 'cost',
      title: [
        s.first && `first token after ${seconds(s.first)}`,
        s.thinking && `${s.thinking} tokens of thought`,
        s.why,
        m.model,
      ]
        .filter(Boolean)
        .join(', '),
    },
    ...words.map((w) => el('span', {}, w)),
  );
  if (prompt) {
    const bar = el('i');
    bar.style.width = ((100 * cached) / prompt).toFixed(1) + '%';
    node.append(
      el(
        'span',
        {
          className: 'reuse',
          role: 'img',
          'aria-label': `${Math.round((100 * cached) / prompt)} percent of the prompt was reused`,
        },
        bar,
      ),
    );
  }
  return node;
}

function callNode(c, m, call) {
  const result = resultOf(c, call),
    tool = serverTool(call.name);
  const node = el(
    'section',
    { className: 'call', 'aria-label': 'Tool call ' + call.name },
    el('header', {}, icon('tool'), 'calls ', el('code', {}, call.name)),
    el('pre', {}, pretty(call.arguments)),
  );
  if (result) node.append(el('pre', { className: 'result' }, result.content));
  else if (!isBusy(c) && tool) node.append(consentNode(c, m, call, tool));
  else if (!isBusy(c)) {
    const text = el('textarea', {
      rows: 2,
      required: true,
      spellcheck: false,
      'aria-label': 'Result of ' + call.name,
      placeholder: 'What the tool answers',
    });
    node.append(
      el(
        'form',
        {
          onsubmit: (e) => {
            e.preventDefault();
            addResult(c, m, call, text.value);
          },
        },
        text,
        el('button', { type: 'submit' }, 'Give the result'),
      ),
    );
  }
  return node;
}

/* "2/3" with arrows, for a message with siblings. */
function versionsNode(c, m) {
  const all = siblings(c, m),
    k = all.indexOf(m);
  if (all.length < 2) return null;
  const go = (step, name, sign) =>
    el(
      'button',
      {
        type: 'button',
        className: 'ghost',
        'aria-label': name,
        disabled: isBusy(c) || !all[k + step],
        onclick: () => {
          if (isBusy(c)) return;
          c.leaf = newestLeaf(c, all[k + step]).id;
          saveChat(c);
          showChat();
        },
      },
      sign,
    );
  return el(
    'span',
    { className: 'versions' },
    go(-1, 'Version before', '\u2039'),
    `${k + 1}/${all.length}`,
    go(1, 'Version after', '\u203a'),
  );
}

const ghost = (text, onclick, more) =>
  el('button', Object.assign({ type: 'button', className: 'ghost', onclick }, more), text);

/* Folds a node of a long message. The buttons stay below it. */
function foldNode(m, node, long) {
  const shut = long && !opened.has(m);
  node.classList.toggle('fold', shut);
  if (!long) return null;
  return ghost(
    shut ? 'Show all' : 'Show less',
    (e) => {
      if (!opened.delete(m)) opened.add(m);
      const open = opened.has(m);
      node.classList.toggle('fold', !open);
      e.currentTarget.textContent = open ? 'Show less' : 'Show all';
      e.currentTarget.setAttribute('aria-expanded', String(open));
    },
    { 'aria-expanded': String(!shut), className: 'ghost unfold' },
  );
}

function isLong(m, max) {
  if (m.content.length > max) return true;
  let n = 0;
  for (let k = m.content.indexOf('\n'); k >= 0; k = m.content.indexOf('\n', k + 1))
    if (++n > MANY_LINES && max === LONG_QUESTION) return true;
  return false;
}

/* The files and the text of a question are made once: what is open, selected or scrolled there stays
 * when an answer begins or ends. */
function showQuestion(c, m, node) {
  if (!node.body) {
    const files = (m.files || []).map((f) => chipNode(f, null));
    node.body = el('div', { className: 'body' }, m.content);
    node.acts = el('div');
    node.replaceChildren(
      ...(files.length ? [el('div', { className: 'files' }, ...files)] : []),
      ...(m.content ? [node.body] : []),
      node.acts,
    );
  }
  const acts = el(
    'div',
    { className: 'acts' },
    foldNode(m, node.body, isLong(m, LONG_QUESTION)),
    versionsNode(c, m),
    m.content && copyButton(() => m.content),
    ghost('Edit', () => editMessage(c, m), { 'aria-label': 'Edit this message' }),
    c.leaf === m.id && !isBusy(c) && ghost('Answer', () => generate(c, m.id)),
  );
  node.acts.replaceWith(acts);
  node.acts = acts;
  return node;
}

/* Creates or updates the node of message m of conversation c. */
function showMessage(c, m) {
  const writing = m.writing;
  if (m.role === 'tool') return null;
  let node = views.get(m);
  if (!node) {
    views.set(m, (node = el('article', { className: 'msg ' + m.role })));
    node.setAttribute('aria-label', m.role === 'user' ? 'You' : 'carat');
  }
  if (node.under) {
    /* an editor is in its place */
    node.replaceChildren(...node.under);
    node.under = null;
  }
  if (m.role === 'user') return showQuestion(c, m, node);
  if (!node.md) {
    node.md = el('div', { className: 'md' });
    node.md.view = new MarkdownView(node.md);
    node.replaceChildren(
      el('div', { className: 'thoughts' }),
      node.md,
      el('div', { className: 'calls' }),
      el('div', { className: 'rest' }),
    );
  }
  const [thoughts, md, calls, rest] = node.children;
  if (m.reasoning) {
    let d = thoughts.firstChild;
    if (!d) {
      thoughts.append((d = el('details', { className: 'thought' }, el('summary'), el('div'))));
      d.text = new GrowingText(d.lastChild);
    }
    const over = !writing || m.content || m.calls;
    d.firstChild.textContent = over
      ? `Thought${m.thought_ms ? ' for ' + seconds(m.thought_ms) : ''}`
      : 'Thinking\u2026';
    d.text.show(m.reasoning);
  }
  md.grown = () => chat === c && toEnd();
  md.view.show(m.content || '', !writing);
  calls.replaceChildren(...(m.calls || []).filter(Boolean).map((call) => callNode(c, m, call)));
  rest.replaceChildren(...(writing ? waitNodes(m) : restNodes(c, m, md)));
  return node;
}

/* Below an answer that is being written. */
function waitNodes(m) {
  const p = m.progress;
  if (m.content || m.calls || m.reasoning) return [];
  return [
    el(
      'p',
      { className: 'wait' },
      el('b'),
      p && p.loading
        ? `Loading ${p.loading}`
        : p
          ? `Reading ${p.total} tokens`
          : 'Waiting for the model',
      p &&
        p.total &&
        el('progress', { max: p.total, value: p.processed, 'aria-label': 'Prompt read' }),
    ),
  ];
}

/* Below a complete answer. */
function restNodes(c, m, md) {
  const nodes = [],
    versions = versionsNode(c, m),
    offered = c.leaf === m.id && (m.full || offers.has(m));
  if (m.error && !offered)
    nodes.push(
      el(
        'p',
        { className: 'fail', role: 'alert' },
        m.error,
        el('button', { type: 'button', onclick: () => regenerate(c, m) }, 'Try again'),
      ),
    );
  if (m.finish === 'length' && !(m.full && offered))
    nodes.push(el('p', { className: 'note' }, 'The answer was cut off at its limit of tokens.'));
  if (m.finish === 'cancelled') nodes.push(el('p', { className: 'note' }, 'Stopped.'));
  if (offered) nodes.push(offerNode(c, m));
  if (m.error && !m.content && !m.calls && !versions) return nodes;
  const long = isLong(m, LONG_ANSWER) && c.leaf !== m.id;
  nodes.push(
    el(
      'div',
      { className: 'acts' },
      foldNode(m, md, long),
      versions,
      m.edited && el('span', { className: 'cost' }, 'edited'),
      m.stats && costNode(m),
      m.content && copyButton(() => m.content),
      m.content && ghost('Edit', () => editMessage(c, m), { 'aria-label': 'Edit this answer' }),
      ghost('Regenerate', () => regenerate(c, m)),
    ),
  );
  return nodes;
}

/* Puts a text box in the place of a message. An edited question is sent as another version of it. An
 * edited answer becomes another version, from which the conversation may go on. */
function editMessage(c, m) {
  if (isBusy(c)) return toast('Stop the answer first.');
  const answer = m.role === 'assistant',
    node = views.get(m);
  const box = el('textarea', {
    className: 'edit',
    value: m.content,
    'aria-label': answer ? 'Edit the answer' : 'Edit your message',
  });
  const under = [...node.childNodes];
  const back = () => {
    showMessage(c, m);
    $('input').focus();
  };
  const send = () => {
    if (box.value === m.content) return back();
    if (!box.value.trim() && !(m.files && !answer)) return;
    if (answer) editAnswer(c, m, box.value);
    else ask(c, m.parent, box.value, m.files, m);
  };
  box.onkeydown = (e) => {
    if (e.key === 'Escape') {
      e.stopPropagation();
      back();
    }
    if (e.key === 'Enter' && !e.isComposing && (answer ? e.ctrlKey || e.metaKey : !e.shiftKey)) {
      e.preventDefault();
      send();
    }
  };
  node.replaceChildren(
    box,
    el(
      'div',
      { className: 'acts' },
      ghost('Cancel', back),
      ghost(answer ? 'Keep as another version' : 'Send again', send),
    ),
  );
  node.under = under;
  box.style.height = Math.min(box.scrollHeight + 4, innerHeight / 2) + 'px';
  box.focus();
  following = false;
  node.scrollIntoView({ block: 'nearest' });
}

/* The messages of a path, with a line below those that are not sent. */
function pathNodes(c, path) {
  const cut = cutOf(path),
    nodes = [];
  path.forEach((m, k) => {
    const node = showMessage(c, m);
    if (cut && k === cut.first) nodes.push(cutNode(c, path, cut));
    if (!node) return;
    node.classList.toggle('unsent', !!cut && k < cut.first);
    nodes.push(node);
  });
  if (cut && cut.first === path.length) nodes.push(cutNode(c, path, cut));
  return nodes;
}

function showChat(stay) {
  const path = shownPath(chat);
  $('title').textContent = chat.title || 'New conversation';
  document.title = chat.title ? chat.title + ' \u2013 carat' : 'carat';
  $('empty').hidden = path.length > 0;
  $('log').hidden = !path.length;
  $('log').replaceChildren(...pathNodes(chat, path));
  $('log').setAttribute('aria-busy', String(isBusy(chat)));
  showSend();
  showContext();
  showSigns();
  showModel();
  toEnd(!stay);
}

function showContext() {
  const path = shownPath(chat),
    cut = cutOf(path),
    last = path.findLast((m) => m.stats);
  /* A cut below the last answer makes its numbers old. */
  const old = !last || (cut && path.indexOf(cut.at) >= path.indexOf(last));
  const used = old ? 0 : last.stats.prompt + last.stats.generated,
    max = contextOf(chat),
    words = [];
  if (used && max)
    words.push(`${used.toLocaleString()} of ${max.toLocaleString()} tokens of context`);
  if (cut) words.push(`${inTurns(countTurns(path.slice(0, cut.first)))} not sent`);
  $('context').textContent = words.join(', ');
  const full = used && max && used > max - max / ROOM_SHARE;
  $('room').hidden = !full || isBusy(chat) || last !== path.at(-1) || last.full || offers.has(last);
}
$('room').onclick = () => {
  const m = shownPath(chat).at(-1);
  offers.set(m, {});
  showMessage(chat, m);
  showContext();
  toEnd(true);
  views.get(m).querySelector('.full button').focus();
};
