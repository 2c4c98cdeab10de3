/* page.js - the conversation on the screen: messages, requests and their streams, actions of the
 * user.
 *
 * Each conversation can have one answer in flight. Buttons act on the one shown. */

let settings = Object.assign({}, store.read('settings', {}));
let chat = null; /* the one shown */
/* id of a conversation -> its answer in flight: {chat, abort, message} */
const flights = new Map();
/* message -> its node */
const views = new WeakMap();
/* id of a conversation -> text typed but not sent */
const drafts = new Map();
let contextMax = 0;

const isBusy = (c) => flights.has(c.id);

/* ---- One message ---- */

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

function costNode(s) {
  const prompt = s.prompt || 0,
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
  const result = shownPath(c).find((x) => x.role === 'tool' && x.tool_call_id === call.id);
  const node = el(
    'section',
    { className: 'call', 'aria-label': 'Tool call ' + call.name },
    el('header', {}, icon('tool'), 'calls ', el('code', {}, call.name)),
    el('pre', {}, pretty(call.arguments)),
  );
  if (result) node.append(el('pre', { className: 'result' }, result.content));
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

/* Creates or updates the node of message m of conversation c. */
function showMessage(c, m) {
  const writing = m.writing;
  if (m.role === 'tool') return null;
  let node = views.get(m);
  if (!node || !node.isConnected) {
    views.set(m, (node = el('article', { className: 'msg ' + m.role })));
    node.setAttribute('aria-label', m.role === 'user' ? 'You' : 'carat');
    if (m.role === 'assistant')
      node.append(
        el('div', { className: 'thoughts' }),
        el('div', { className: 'md' }),
        el('div', { className: 'calls' }),
        el('div', { className: 'rest' }),
      );
  }
  if (m.role === 'user') {
    node.replaceChildren(
      el('div', { className: 'body' }, m.content),
      el(
        'div',
        { className: 'acts' },
        versionsNode(c, m),
        copyButton(() => m.content),
        el(
          'button',
          { type: 'button', className: 'ghost', onclick: () => editMessage(c, m) },
          'Edit',
        ),
        c.leaf === m.id &&
          !isBusy(c) &&
          el(
            'button',
            { type: 'button', className: 'ghost', onclick: () => generate(c, m.id) },
            'Answer',
          ),
      ),
    );
    return node;
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
  md.stream = md.stream || new MarkdownStream(md);
  md.stream.show(m.content || '', !writing);
  calls.replaceChildren(...(m.calls || []).filter(Boolean).map((call) => callNode(c, m, call)));
  rest.replaceChildren();
  if (writing) {
    const p = m.progress;
    if (!m.content && !m.calls && !m.reasoning)
      rest.append(
        el(
          'p',
          { className: 'wait' },
          el('b'),
          p ? `Reading ${p.total} tokens` : 'Waiting for the model',
          p && el('progress', { max: p.total, value: p.processed, 'aria-label': 'Prompt read' }),
        ),
      );
    return node;
  }
  if (m.error)
    rest.append(
      el(
        'p',
        { className: 'fail', role: 'alert' },
        m.error,
        el('button', { type: 'button', onclick: () => regenerate(c, m) }, 'Try again'),
      ),
    );
  if (m.finish === 'length')
    rest.append(el('p', { className: 'note' }, 'The answer was cut off at its limit of tokens.'));
  if (m.finish === 'cancelled') rest.append(el('p', { className: 'note' }, 'Stopped.'));
  const acts = el('div', { className: 'acts' }),
    versions = versionsNode(c, m);
  if (m.error && !m.content && !m.calls && !versions) return node;
  if (versions) acts.append(versions);
  if (m.stats) acts.append(costNode(m.stats));
  if (m.content) acts.append(copyButton(() => m.content));
  acts.append(
    el(
      'button',
      { type: 'button', className: 'ghost', onclick: () => regenerate(c, m) },
      'Regenerate',
    ),
  );
  rest.append(acts);
  return node;
}

function showChat(stay) {
  const path = shownPath(chat);
  $('title').textContent = chat.title || 'New conversation';
  document.title = chat.title ? chat.title + ' \u2013 carat' : 'carat';
  $('empty').hidden = path.length > 0;
  $('log').hidden = !path.length;
  for (const m of path) views.delete(m);
  $('log').replaceChildren(...path.map((m) => showMessage(chat, m)).filter(Boolean));
  $('log').setAttribute('aria-busy', String(isBusy(chat)));
  showSend();
  showContext();
  toEnd(!stay);
}

function showContext() {
  const last = shownPath(chat).findLast((m) => m.stats);
  const used = last ? last.stats.prompt + last.stats.generated : 0;
  $('context').textContent =
    used && contextMax
      ? `${used.toLocaleString()} of ${contextMax.toLocaleString()} tokens of context`
      : '';
}

function showList() {
  const items = [];
  let day = '';
  for (const x of [...chats.values()].sort((a, b) => b.at - a.at)) {
    const age = (new Date().setHours(0, 0, 0, 0) - new Date(x.at).setHours(0, 0, 0, 0)) / 864e5;
    const name =
      age <= 0
        ? 'Today'
        : age < 2
          ? 'Yesterday'
          : age < 8
            ? 'This week'
            : new Date(x.at).toLocaleDateString(undefined, { month: 'long', year: 'numeric' });
    if (name !== day) items.push(el('li', { className: 'day' }, (day = name)));
    const on = chat && x.id === chat.id,
      title = x.title || 'Untitled';
    items.push(
      el(
        'li',
        { className: (on ? 'on' : '') + (flights.has(x.id) ? ' busy' : '') },
        el(
          'button',
          {
            type: 'button',
            className: 'go',
            title: flights.has(x.id) ? title + ' (an answer is being written)' : title,
            'aria-current': on ? 'true' : 'false',
            onclick: () => openChat(x.id),
            ondblclick: () => rename(x.id),
          },
          title,
        ),
        el(
          'button',
          {
            type: 'button',
            className: 'del',
            'aria-label': 'Delete ' + title,
            onclick: () => removeChat(x.id),
          },
          icon('bin'),
        ),
      ),
    );
  }
  $('list').replaceChildren(...items);
}

/* ---- Scrolling: to the end while text comes, unless the reader has scrolled up ---- */

let following = true;
function toEnd(force) {
  if (force) following = true;
  if (following) $('scroll').scrollTop = $('scroll').scrollHeight;
  $('down').hidden = following;
}
$('scroll').addEventListener('scroll', () => {
  const s = $('scroll');
  following = s.scrollHeight - s.scrollTop - s.clientHeight < 60;
  $('down').hidden = following;
});
$('down').onclick = () => toEnd(true);

function toast(text, action, run) {
  const t = $('toast');
  t.replaceChildren(text);
  if (action)
    t.append(
      el(
        'button',
        {
          type: 'button',
          onclick: () => {
            t.hidden = true;
            run();
          },
        },
        action,
      ),
    );
  t.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => {
    t.hidden = true;
  }, 6000);
}

/* ---- The request and its stream ---- */

const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'repeat_penalty', 'max_tokens', 'seed'];

function headers(json) {
  const h = json ? { 'Content-Type': 'application/json' } : {};
  if (settings.key) h.Authorization = 'Bearer ' + settings.key;
  return h;
}

function requestBody(c, path) {
  const messages = c.system ? [{ role: 'system', content: c.system }] : [];
  for (const m of path) {
    if (m.role === 'user') messages.push({ role: 'user', content: m.content });
    else if (m.role === 'tool')
      messages.push({ role: 'tool', tool_call_id: m.tool_call_id, content: m.content });
    else if (m.content || m.calls) {
      const a = { role: 'assistant', content: m.content || null };
      if (m.reasoning) a.reasoning_content = m.reasoning;
      if (m.calls)
        a.tool_calls = m.calls.map((x) => ({
          id: x.id,
          type: 'function',
          function: { name: x.name, arguments: x.arguments },
        }));
      messages.push(a);
    }
  }
  const body = {
    model: 'carat',
    messages,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
  };
  for (const key of NUMBERS) {
    const v = settings[key];
    if (v !== undefined && v !== '' && Number.isFinite(Number(v))) body[key] = Number(v);
  }
  if (settings.effort === 'none') body.chat_template_kwargs = { enable_thinking: false };
  else if (settings.effort) body.reasoning_effort = settings.effort;
  const stop = (settings.stop || '').split('\n').filter(Boolean);
  if (stop.length) body.stop = stop;
  if (settings.schema)
    body.response_format = {
      type: 'json_schema',
      json_schema: { name: 'answer', schema: JSON.parse(settings.schema), strict: true },
    };
  if (settings.tools) body.tools = JSON.parse(settings.tools);
  return body;
}

/* The data of each event of a stream. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) if (line.startsWith('data:')) yield line.slice(5).trim();
  }
}

async function sentence(response) {
  try {
    const j = await response.json();
    return (
      (j.error && j.error.message) || 'The server answered with status ' + response.status + '.'
    );
  } catch {
    return 'The server answered with status ' + response.status + '.';
  }
}

function takeChunk(m, chunk, times) {
  const choice = chunk.choices && chunk.choices[0],
    d = (choice && choice.delta) || {};
  if (chunk.error) throw new Error(chunk.error.message || 'The server failed.');
  if (chunk.prompt_progress) m.progress = chunk.prompt_progress;
  const now = performance.now(),
    thought = d.reasoning_content || d.reasoning;
  if ((thought || d.content || d.tool_calls) && !times.first) times.first = now - times.start;
  if (thought) {
    if (!times.thought) times.thought = now;
    m.reasoning = (m.reasoning || '') + thought;
  }
  if ((d.content || d.tool_calls) && times.thought && !m.thought_ms)
    m.thought_ms = now - times.thought;
  if (d.content) m.content += d.content;
  for (const t of d.tool_calls || []) {
    m.calls = m.calls || [];
    const call =
      m.calls[t.index || 0] || (m.calls[t.index || 0] = { id: '', name: '', arguments: '' });
    if (t.id) call.id = t.id;
    if (t.function && t.function.name) call.name += t.function.name;
    if (t.function && t.function.arguments) call.arguments += t.function.arguments;
  }
  if (choice && choice.finish_reason) m.finish = choice.finish_reason;
  const u = chunk.usage,
    t = chunk.timings;
  if (u)
    m.stats = Object.assign(m.stats || {}, {
      prompt: u.prompt_tokens,
      generated: u.completion_tokens,
      cached: (u.prompt_tokens_details || {}).cached_tokens || 0,
      thinking: (u.completion_tokens_details || {}).reasoning_tokens || 0,
    });
  if (t)
    m.stats = Object.assign(m.stats || {}, {
      rate: t.predicted_per_second,
      why: t.reuse || '',
      prompt: t.prompt_n + t.cache_n,
      cached: t.cache_n,
      generated: t.predicted_n,
    });
  if (m.stats && times.first) m.stats.first = times.first;
}

/* Returns a function that draws a growing answer. After a drawing that took t, the next one waits
 * for 3 t, so drawing takes at most a quarter of the time. */
function painter(c, m) {
  let waiting = 0;
  const draw = () => {
    const start = performance.now();
    if (chat !== c || !m.writing) {
      waiting = 0;
      return;
    }
    showMessage(c, m);
    toEnd();
    waiting = setTimeout(
      () => {
        waiting = 0;
        if (again) request();
      },
      3 * (performance.now() - start),
    );
    again = false;
  };
  let again = false;
  const request = () => {
    again = true;
    if (!waiting) waiting = requestAnimationFrame(draw);
  };
  return request;
}

/* Requests the answer to the path that ends with parent, the id of a message. */
async function generate(c, parent) {
  if (isBusy(c)) return;
  const m = { id: newId(), parent, at: Date.now(), role: 'assistant', content: '' };
  const abort = new AbortController(),
    times = { start: performance.now() },
    paint = painter(c, m);
  Object.defineProperty(m, 'writing', {
    value: true,
    writable: true,
    configurable: true,
    enumerable: false,
  });
  addMessage(c, m);
  c.leaf = m.id;
  flights.set(c.id, { chat: c, abort, message: m });
  if (chat === c) showChat();
  showList();
  try {
    const body = requestBody(c, pathTo(c, parent));
    const response = await fetch('v1/chat/completions', {
      method: 'POST',
      headers: headers(true),
      body: JSON.stringify(body),
      signal: abort.signal,
    });
    if (response.status === 401)
      throw new Error('The server asks for an API key: enter it under Parameters.');
    if (!response.ok) throw new Error(await sentence(response));
    for await (const data of events(response.body)) {
      if (data === '[DONE]') break;
      takeChunk(m, JSON.parse(data), times);
      paint();
    }
    if (!m.finish) throw new Error('The answer ended before it was complete.');
  } catch (e) {
    if (abort.signal.aborted) m.finish = 'cancelled';
    else if (e instanceof TypeError)
      m.error = 'The server cannot be reached. Is carat serve still running?';
    else m.error = e.message;
  }
  land(c, m);
  if (m.error) connect();
}

/* Saves an answer that is complete, stopped or failed. */
function land(c, m) {
  m.writing = false;
  delete m.progress;
  if (m.calls) m.calls = m.calls.filter(Boolean);
  flights.delete(c.id);
  c.at = Date.now();
  saveMessage(c, m);
  showList();
  if (chat !== c) return;
  for (const x of shownPath(c)) showMessage(c, x);
  $('log').setAttribute('aria-busy', 'false');
  showSend();
  showContext();
  toEnd();
}

/* ---- What the user can do ---- */

/* Adds a message of the user after parent, the id of a message or null, and requests its answer. */
function ask(c, parent, text) {
  if (isBusy(c) || !text.trim()) return;
  const m = { id: newId(), parent, at: Date.now(), role: 'user', content: text };
  if (!c.title) c.title = text.trim().replace(/\s+/g, ' ').slice(0, 60);
  addMessage(c, m);
  c.leaf = m.id;
  c.at = m.at;
  if (c === chat) store.write('last', c.id);
  saveMessage(c, m);
  generate(c, m.id);
}

/* Requests another version of the answer m. An m that holds only an error is removed. */
function regenerate(c, m) {
  if (isBusy(c)) return;
  if (m.error && !m.content && !m.calls) dropMessage(c, m);
  generate(c, m.parent);
}

function editMessage(c, m) {
  if (isBusy(c)) return toast('Stop the answer first.');
  const box = el('textarea', {
    className: 'edit',
    value: m.content,
    'aria-label': 'Edit your message',
  });
  const back = () => {
    showMessage(c, m);
    $('input').focus();
  };
  const send = () => ask(c, m.parent, box.value);
  box.onkeydown = (e) => {
    if (e.key === 'Escape') {
      e.stopPropagation();
      back();
    }
    if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      send();
    }
  };
  views
    .get(m)
    .replaceChildren(
      box,
      el(
        'div',
        { className: 'acts' },
        el('button', { type: 'button', className: 'ghost', onclick: back }, 'Cancel'),
        el('button', { type: 'button', className: 'ghost', onclick: send }, 'Send again'),
      ),
    );
  box.style.height = Math.min(box.scrollHeight + 4, innerHeight / 2) + 'px';
  box.focus();
}

function addResult(c, m, call, text) {
  if (isBusy(c)) return;
  const path = shownPath(c),
    given = (x) => path.find((r) => r.role === 'tool' && r.tool_call_id === x.id);
  let at = path.indexOf(m);
  if (at < 0) return;
  while (path[at + 1] && path[at + 1].role === 'tool') at++;
  const result = {
    id: newId(),
    parent: path[at].id,
    at: Date.now(),
    role: 'tool',
    tool_call_id: call.id,
    content: text,
  };
  addMessage(c, result);
  c.leaf = result.id;
  c.at = result.at;
  saveMessage(c, result);
  if (m.calls.some((x) => x !== call && !given(x))) showChat();
  else generate(c, result.id);
}

/* The conversation's object: the one in flight, the one shown, or a new one from the storage. */
function findChat(id) {
  return flights.has(id) ? flights.get(id).chat : chat && chat.id === id ? chat : loadChat(id);
}

function enterChat(c) {
  if (chat) drafts.set(chat.id, $('input').value);
  chat = c;
  $('input').value = drafts.get(c.id) || '';
  fitInput();
  showChat();
  showList();
  closeSide();
}

function openChat(id) {
  if (chat && chat.id === id) return closeSide();
  const c = findChat(id);
  if (!c) return toast('This conversation is no longer there.');
  store.write('last', id);
  enterChat(c);
}

function startChat() {
  enterChat(newChat());
  $('input').focus();
}

function removeChat(id) {
  if (flights.has(id)) return toast('Stop the answer first.');
  const c = findChat(id);
  eraseChat(id);
  if (chat.id === id) startChat();
  showList();
  toast(`Deleted ${(c && c.title) || 'the conversation'}.`, 'Undo', () => {
    if (c) {
      saveChat(c);
      openChat(id);
    }
  });
}

function rename(id) {
  const c = findChat(id),
    title = c && prompt('Name of the conversation', c.title);
  if (!title || !title.trim()) return;
  c.title = title.trim().slice(0, 120);
  saveChat(c);
  showList();
  if (chat.id === id) $('title').textContent = c.title;
}

function showSend() {
  const busy = isBusy(chat),
    send = $('send');
  send.replaceChildren(icon(busy ? 'stop' : 'up'));
  send.setAttribute('aria-label', busy ? 'Stop' : 'Send');
  send.disabled = !busy && !$('input').value.trim();
}

function fitInput() {
  const box = $('input');
  box.style.height = 'auto';
  box.style.height = Math.min(box.scrollHeight, innerHeight * 0.4) + 'px';
  showSend();
}

$('form').onsubmit = (e) => {
  e.preventDefault();
  if (isBusy(chat)) return flights.get(chat.id).abort.abort();
  const text = $('input').value;
  if (!text.trim()) return;
  $('input').value = '';
  fitInput();
  ask(chat, chat.leaf, text);
};
$('input').oninput = fitInput;
$('input').onkeydown = (e) => {
  if (e.key !== 'Enter' || e.shiftKey || e.isComposing) return;
  e.preventDefault();
  if (!isBusy(chat)) $('form').requestSubmit();
};
document.addEventListener('keydown', (e) => {
  if (e.key === 'Escape' && !$('set').open) {
    if (document.body.classList.contains('side')) closeSide();
    else if (isBusy(chat)) flights.get(chat.id).abort.abort();
  }
  if (
    e.key === '/' &&
    !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName) &&
    !$('set').open
  ) {
    e.preventDefault();
    $('input').focus();
  }
});
$('new').onclick = startChat;
$('export').onclick = () => {
  const all = [...chats.keys()]
    .map(loadChat)
    .filter(Boolean)
    .map((c) => ({
      id: c.id,
      title: c.title,
      at: c.at,
      system: c.system,
      leaf: c.leaf,
      messages: [...c.messages.values()],
    }));
  const url = URL.createObjectURL(
    new Blob([JSON.stringify(all, null, 1)], { type: 'application/json' }),
  );
  el('a', { href: url, download: 'carat-conversations.json' }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
};

function closeSide() {
  document.body.classList.remove('side');
  $('open-side').setAttribute('aria-expanded', 'false');
}
$('open-side').onclick = () => {
  document.body.classList.add('side');
  $('open-side').setAttribute('aria-expanded', 'true');
  $('new').focus();
};
$('scrim').onclick = closeSide;

const THEMES = ['system', 'light', 'dark'];
function showTheme() {
  const t = THEMES.includes(settings.theme) ? settings.theme : 'system';
  document.documentElement.dataset.theme = t;
  $('theme').textContent = 'Theme: ' + t;
}
$('theme').onclick = () => {
  settings.theme = THEMES[(THEMES.indexOf(settings.theme || 'system') + 1) % 3];
  store.write('settings', settings);
  showTheme();
};

/* ---- Parameters: every change is saved at once, unless it is invalid ---- */

function checkJson(field, wants) {
  const out = $('params').querySelector(`output[data-for=${field.name}]`);
  let bad = '';
  try {
    if (field.value.trim() && !wants(JSON.parse(field.value)))
      bad = field.name === 'tools' ? 'This must be an array.' : 'This must be an object.';
  } catch (e) {
    bad = e.message;
  }
  out.textContent = bad;
  field.classList.toggle('wrong', !!bad);
  return !bad;
}

$('params').oninput = (e) => {
  const f = e.target;
  if (f.name === 'system') {
    chat.system = f.value;
    return;
  }
  if (f.name === 'schema' && !checkJson(f, (v) => v && typeof v === 'object' && !Array.isArray(v)))
    return;
  if (f.name === 'tools' && !checkJson(f, Array.isArray)) return;
  if (NUMBERS.includes(f.name)) {
    const ok = f.value.trim() === '' || Number.isFinite(Number(f.value));
    f.classList.toggle('wrong', !ok);
    if (!ok) return;
  }
  settings[f.name] = f.value.trim();
  store.write('settings', settings);
};
$('open-set').onclick = () => {
  for (const f of $('params').elements)
    if (f.name) f.value = f.name === 'system' ? chat.system : settings[f.name] || '';
  $('set').showModal();
};
$('close-set').onclick = () => $('set').close();
$('set').onclick = (e) => {
  if (e.target === $('set')) $('set').close();
};
$('set').onclose = () => {
  saveChat(chat);
  connect();
};

/* ---- Start ---- */

let again = 0;
async function connect() {
  const box = $('model');
  clearTimeout(again);
  try {
    const r = await fetch('v1/models', { headers: headers(false) });
    if (!r.ok)
      throw new Error(
        r.status === 503 ? 'loading the model' : r.status === 401 ? 'API key needed' : 'not ready',
      );
    const m = (await r.json()).data[0];
    contextMax = m.context_length || (m.meta && m.meta.n_ctx) || 0;
    $('model-name').textContent = m.id;
    box.title = m.meta
      ? `${m.id}, ${(m.meta.n_params / 1e9).toPrecision(2)} billion parameters, ` +
        (m.meta.ftype || '')
      : m.id;
    box.className = 'up';
    showContext();
  } catch (e) {
    box.className = 'down';
    $('model-name').textContent = e instanceof TypeError ? 'server not reachable' : e.message;
    again = setTimeout(connect, 3000);
  }
}

/* ---- Changes by other tabs ---- */

addEventListener('storage', (e) => {
  const [, kind, id, message] = (e.key || '').split('.');
  if (kind === 'settings' && !$('set').open) {
    settings = Object.assign({}, store.read('settings', {}));
    showTheme();
  } else if (kind === 'chat') {
    const record = store.read('chat.' + id, null);
    if (record)
      chats.set(id, { id, title: String(record.title || ''), at: Number(record.at) || 0 });
    else chats.delete(id);
    if (record && chat.id === id) {
      chat.title = String(record.title || '');
      if (!$('set').open) chat.system = record.system || '';
    }
    showList();
  } else if (kind === 'msg') {
    const c = flights.has(id) ? flights.get(id).chat : chat.id === id ? chat : null;
    const m = c && store.read('msg.' + id + '.' + message, null);
    if (isMessage(m)) takeMessage(c, m);
  }
});

/* An answer below the message shown last becomes visible; another message becomes a version. */
function takeMessage(c, m) {
  addMessage(c, m);
  if (!isBusy(c) && m.role === 'assistant' && pathTo(c, m.id).some((x) => x.id === c.leaf))
    c.leaf = m.id;
  const typing = $('log').querySelector('.edit, .call textarea:focus');
  if (c === chat && !isBusy(c) && !typing) showChat(true);
}

addEventListener('pagehide', () => {
  for (const { chat: c, message: m } of flights.values())
    if (m.content || m.reasoning) saveMessage(c, Object.assign({}, m, { finish: 'cancelled' }));
});

for (const idea of [
  'What is carat?',
  'Explain what a mutex is, with a short example in C.',
  'Plan a three-day walk in the mountains for two.',
])
  $('ideas').append(
    el('li', {}, el('button', { type: 'button', onclick: () => ask(chat, chat.leaf, idea) }, idea)),
  );
showTheme();
chat = loadChat(store.read('last', '')) || newChat();
showList();
showChat();
connect();
$('input').focus();
