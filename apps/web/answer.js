/* answer.js - the request for an answer, its stream, and what makes a conversation grow. */

/* Numbers of a request: name, kind, least, most, what it does. */
const NUMBERS = SAMPLING.concat([
  ['max_tokens', 'WHOLE', 1, 2147483647],
  ['seed', 'WHOLE', 0, Number.MAX_SAFE_INTEGER],
]);

function headers(json) {
  const h = json ? { 'Content-Type': 'application/json' } : {};
  if (settings.key) h.Authorization = 'Bearer ' + settings.key;
  return h;
}

/* list: the messages, as sentOf gives them. */
async function requestBody(c, list) {
  const messages = c.system ? [{ role: 'system', content: c.system }] : [],
    old = { n: picturesOf(list).length - MAX_PICTURES };
  for (const m of list) {
    if (m.role === 'user')
      messages.push({ role: 'user', content: await contentWithFiles(c, m, old) });
    else if (m.role === 'tool')
      messages.push({ role: 'tool', tool_call_id: m.tool_call_id, content: m.content });
    else {
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
    model: modelOf(c),
    messages,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
  };
  for (const row of NUMBERS) {
    const v = settings[row[0]];
    if (v && !faultOf(row, v)) body[row[0]] = Number(v);
  }
  const detail = settings.image_tokens;
  if (detail && messages.some((m) => Array.isArray(m.content)))
    body.image_tokens = detail === 'native' ? detail : Number(detail);
  if (settings.effort === 'none') body.chat_template_kwargs = { enable_thinking: false };
  else if (settings.effort) body.reasoning_effort = settings.effort;
  const stop = (settings.stop || '').split('\n').filter(Boolean);
  if (stop.length) body.stop = stop;
  if (settings.schema)
    body.response_format = {
      type: 'json_schema',
      json_schema: { name: 'answer', schema: setting('schema'), strict: true },
    };
  if (settings.tools) body.tools = setting('tools');
  const offered = offeredTools();
  if (offered.length) body.tools = [].concat(body.tools || [], offered);
  return body;
}

/* The value of a setting that is JSON. */
function setting(name) {
  try {
    return JSON.parse(settings[name]);
  } catch {
    throw new Error(
      `The ${name === 'tools' ? 'tools are' : 'schema is'} not valid JSON: mend it under Parameters.`,
    );
  }
}

/* The id, or '', and the data of each event of a stream. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '',
    id = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines)
      if (line.startsWith('id:')) id = line.slice(3).trim();
      else if (line.startsWith('data:')) yield [id, line.slice(5).trim()];
  }
}

/* An error of the server. Its field full says that the prompt is longer than the context. */
function serverError(error, otherwise, status) {
  const e = new Error(textOr(error.message, MAX_TEXT, '') || otherwise);
  e.full = error.code === 'context_length_exceeded';
  e.status = status;
  return e;
}

/* Sends a request, its body as JSON, and returns the response. Throws a sentence unless its status is
 * 200. */
async function send(method, path, body, signal, more) {
  const response = await fetch(path, {
    method,
    headers: Object.assign(headers(!!body), more),
    body: body && JSON.stringify(body),
    signal,
  });
  if (response.ok) return response;
  if (response.status === 401)
    throw new Error('The server asks for an API key: enter it under Parameters.');
  const said = await response.json().catch(() => null);
  throw serverError(
    (said && said.error) || {},
    'The server answered with status ' + response.status + '.',
    response.status,
  );
}

const post = (path, body, signal) => send('POST', path, body, signal);

/* ---- Streams that outlive their connection ---- */

const RETRIES = 6; /* in a row, each after twice the time: a minute in all */
const streams = new Set(); /* names of those that the server goes on with */

function dropStream(name) {
  streams.delete(name);
  const path = 'v1/stream?conv_id=' + name;
  fetch(path, { method: 'DELETE', headers: headers(false), keepalive: true }).catch(() => {});
}

function pause(ms, signal) {
  return new Promise((go) => {
    const timer = setTimeout(go, ms);
    signal.addEventListener('abort', () => (clearTimeout(timer), go()));
  });
}

/* A stream: its name, which no other client can guess, and the id of the last event that was read. */
function newStream() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return { name: [...bytes].map((b) => b.toString(16).padStart(2, '0')).join(''), last: '' };
}

/* Where the stream goes on. */
const restOf = ({ name, last }, signal) =>
  last
    ? send('GET', 'v1/stream', null, signal, { 'Last-Event-ID': last })
    : send('GET', 'v1/stream?conv_id=' + name, null, signal);

/* The data of each event of an answer. body: its request; null: it was sent before the page was loaded
 * again. When the connection breaks, as on a phone that slept, another one goes on behind the last
 * event. */
async function* answerEvents(body, stream, signal) {
  let tries = 0,
    over = false;
  try {
    while (!over) {
      try {
        const response =
          body && !stream.last
            ? await send('POST', 'v1/chat/completions', body, signal, { 'X-Conversation-Id': stream.name })
            : await restOf(stream, signal);
        streams.add(stream.name);
        for await (const [id, data] of events(response.body)) {
          if ((over = data === '[DONE]')) return;
          yield data;
          stream.last = id; /* what was read is in the message now */
          tries = 0;
        }
        if (!stream.last) return;
        throw new TypeError('the stream has no end');
      } catch (e) {
        if (signal.aborted || !(e instanceof TypeError) || !stream.last || tries === RETRIES) throw e;
        await pause(1000 * 2 ** tries++, signal);
      }
    }
  } finally {
    if (over) streams.delete(stream.name);
    else if (signal.aborted || streams.has(stream.name)) dropStream(stream.name); /* also before its first byte */
  }
}

/* Answers in flight are noted for the page that comes after this one, in the storage of this tab:
 * {chat, message, name, last}. Returns the names of their streams. */
function noteFlights() {
  const notes = [];
  for (const { chat: c, message: m } of flights.values())
    if (m && m.stream) notes.push(Object.assign({ chat: c.id, message: m }, m.stream));
  const bare = ({ chat: c, message: m, name }) => ({
    chat: c,
    message: { id: m.id, parent: m.parent, at: m.at, role: m.role },
    name,
    last: '',
  });
  for (const list of [notes, notes.map(bare)])
    try {
      sessionStorage.setItem('carat.flights', JSON.stringify(list));
      return list.map((note) => note.name);
    } catch {
      /* no room; or no storage */
    }
  return [];
}
addEventListener('visibilitychange', () => noteFlights()); /* a phone may end a page that is hidden */
addEventListener('pagehide', () => {
  const kept = noteFlights();
  for (const name of [...streams]) if (!kept.includes(name)) dropStream(name);
});

/* One page at a time reads a stream: browsers copy the storage of a tab that is duplicated. Some have
 * no locks for pages without TLS. */
const lockOf = (name, options, job) =>
  navigator.locks ? navigator.locks.request('carat.' + name, options, job) : job();

function resume({ chat: id, message, name, last }) {
  const m = isId(id) && cleanMessage(message),
    c = m && m.role === 'assistant' && findChat(id);
  if (!c || isBusy(c) || (m.parent && !c.messages.has(m.parent))) return null;
  delete m.finish;
  addMessage(c, writing(m));
  c.leaf = m.id;
  return answer(c, m, { name, last: textOr(last, 80, '') }, null);
}

/* Goes on with the answers that were in flight when this tab's page was loaded before. */
function resumeFlights() {
  let notes = [];
  try {
    notes = listOf(JSON.parse(sessionStorage.getItem('carat.flights')));
  } catch {
    /* none */
  }
  for (const note of notes)
    if (note && /^[0-9a-f]{32}$/.test(note.name))
      lockOf(note.name, { signal: AbortSignal.timeout(3000) }, async () => resume(note)).catch(() => {});
}

const troubleOf = (e) =>
  e instanceof TypeError
    ? 'The server cannot be reached. Is carat serve still running?'
    : e.message;

function takeChunk(m, chunk, times) {
  if (typeof chunk.model === 'string') m.model = chunk.model;
  const choice = chunk.choices && chunk.choices[0],
    d = (choice && choice.delta) || {};
  if (chunk.error) throw serverError(chunk.error, 'The server failed.');
  if (chunk.prompt_progress) m.progress = chunk.prompt_progress;
  const now = performance.now(),
    thought = d.reasoning_content || d.reasoning;
  if ((thought || d.content || d.tool_calls) && !times.first && times.start)
    times.first = now - times.start;
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

/* Returns a function that draws a growing answer by show(). After a drawing that took t, the next one
 * waits for 3 t, so drawing takes at most a quarter of the time. */
function painter(c, m, show) {
  let waiting = 0;
  const draw = () => {
    const start = performance.now();
    if (chat !== c || !m.writing) {
      waiting = 0;
      return;
    }
    show();
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

/* Marks a message that is being written. The mark is not stored. */
const writing = (m) =>
  Object.defineProperty(m, 'writing', {
    value: true,
    writable: true,
    configurable: true,
    enumerable: false,
  });

/* Requests the answer m and fills it from the stream; body as of answerEvents. show draws it. Throws a
 * sentence. */
async function fillAnswer(c, m, body, stream, signal, show) {
  const times = { start: body && performance.now() },
    paint = painter(c, m, show),
    named = body && modelNamed(body.model);
  if (named && named.state !== 'loaded') m.progress = { loading: named.id };
  paint();
  for await (const data of answerEvents(body, stream, signal)) {
    takeChunk(m, JSON.parse(data), times);
    paint();
  }
  if (!m.finish) throw new Error('The answer ended before it was complete.');
}

/* Begins what is in flight of c until settle. message: the one that grows, or null. Returns the signal
 * of Stop. */
function takeOff(c, message) {
  const abort = new AbortController();
  flights.set(c.id, { chat: c, abort, message });
  if (chat === c) showChat();
  showList();
  return abort.signal;
}

function settle(c) {
  flights.delete(c.id);
  noteFlights();
  showList();
  if (chat !== c) return;
  for (const m of shownPath(c)) showMessage(c, m);
  $('log').setAttribute('aria-busy', 'false');
  showSend();
  showContext();
  toEnd();
}

/* Whether the answer m ended because the context has no room for another token. */
function filledContext(c, m) {
  const max = contextOf(c);
  return m.finish === 'length' && m.stats && max && m.stats.prompt + m.stats.generated >= max - 1;
}

/* Requests the answer to the path that ends with parent, the id of a message. */
async function generate(c, parent) {
  if (isBusy(c)) return;
  const m = writing({ id: newId(), parent, at: Date.now(), role: 'assistant', content: '' });
  addMessage(c, m);
  c.leaf = m.id;
  const stream = newStream(),
    done = answer(c, m, stream, () => requestBody(c, sentOf(pathTo(c, parent))));
  lockOf(stream.name, {}, () => done);
  await done;
}

/* Fills the message m, the last one of c. makeBody: its request; null: the rest of its stream is read. */
async function answer(c, m, stream, makeBody) {
  Object.defineProperty(m, 'stream', { value: stream, configurable: true }); /* is not stored with it */
  const signal = takeOff(c, m),
    fresh = !makeBody && !stream.last;
  noteFlights();
  try {
    const named = modelNamed(modelOf(c));
    if (serverTools.length && named && named.state !== 'loaded') {
      m.progress = { loading: named.id };
      showMessage(c, m);
    }
    if (serverTools.length || !makeBody) await loadTools(modelOf(c), signal);
    await fillAnswer(c, m, makeBody && (await makeBody()), stream, signal, () => showMessage(c, m));
    if (filledContext(c, m)) m.full = true;
  } catch (e) {
    if (signal.aborted) m.finish = 'cancelled';
    else if (makeBody || e.status !== 404) m.error = troubleOf(e);
    else if (fresh) {
      /* the page was loaded again before the server had begun */
      flights.delete(c.id);
      dropMessage(c, m);
      return generate(c, m.parent);
    } else m.error = 'The page was loaded again, and the server no longer has the rest of this answer.';
    if (!signal.aborted && e.full) m.full = true;
  }
  land(c, m);
  if (!m.error) runAllowed(c, m);
  if (m.error || models.length > 1) connect(); /* other models may be loaded now */
}

/* Saves an answer that is complete, stopped or failed. */
function land(c, m) {
  m.writing = false;
  delete m.progress;
  if (m.calls) m.calls = m.calls.filter(Boolean);
  c.at = Date.now();
  saveMessage(c, m);
  settle(c);
}

/* Adds a message of the user after parent, the id of a message or null, and requests its answer. old:
 * the message that this one is another version of. */
function ask(c, parent, text, files, old) {
  if (isBusy(c) || (!text.trim() && !(files && files.length))) return;
  const m = { id: newId(), parent, at: Date.now(), role: 'user', content: text };
  if (files && files.length) m.files = files;
  if (old && old.cut) m.cut = copiedCut(old, m.id);
  if (!c.title) c.title = (text.trim() || files[0].name).replace(/\s+/g, ' ').slice(0, 60);
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
  if (m.error && !m.content && !m.calls && !(c.children.get(m.id) || []).length) dropMessage(c, m);
  generate(c, m.parent);
}

/* Adds a version of the answer m with another text. */
function editAnswer(c, m, text) {
  if (isBusy(c) || !text.trim()) return;
  const copy = { id: newId(), parent: m.parent, at: Date.now(), role: 'assistant', content: text };
  copy.edited = true;
  for (const key of ['reasoning', 'calls', 'thought_ms', 'model']) if (m[key]) copy[key] = m[key];
  if (m.cut) copy.cut = copiedCut(m, copy.id);
  addMessage(c, copy);
  c.leaf = copy.id;
  c.at = copy.at;
  saveMessage(c, copy);
  showList();
  showChat(true);
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
