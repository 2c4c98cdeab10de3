/* store.js - conversations in localStorage, which all tabs of the browser share.
 *
 *     carat.chat.ID          {id, title, at, system, model, leaf}
 *     carat.msg.ID.MESSAGE   {id, parent, at, role, content, ...}
 *
 * A conversation is a tree: editing a message or regenerating an answer adds a sibling. The page
 * shows the path from a root to `leaf`. Each message has its own key. Only the tab that made the
 * message writes it, except for its `cut` (full.js). So no tab overwrites the text of another; storage
 * events tell the other tabs.
 *
 * Nothing is lost in silence. A value for which the browser has no room stays in this tab, and the
 * page says so until it has been written. An entry that cannot be read is left as it is. What is
 * read, from here or from a file, passes cleanChat and cleanMessage, so the rest of the page may
 * trust the types of its fields. */

const store = {
  unsaved: new Map() /* key -> text for which there was no room; it hides what is stored */,
  damaged: new Map() /* key -> text that is no value */,

  raw(key) {
    if (this.unsaved.has(key)) return this.unsaved.get(key);
    try {
      return localStorage.getItem('carat.' + key);
    } catch {
      return null;
    }
  },
  read(key, fallback) {
    const text = this.raw(key);
    if (text === null) return fallback;
    try {
      return JSON.parse(text);
    } catch {
      this.damaged.set(key, text);
      return fallback;
    }
  },
  /* Writes, or returns false. */
  put(key, text) {
    try {
      localStorage.setItem('carat.' + key, text);
      this.unsaved.delete(key);
      return true;
    } catch {
      return false;
    }
  },
  write(key, value) {
    const text = JSON.stringify(value);
    if (!this.put(key, text)) this.unsaved.set(key, text);
    showStorage();
  },
  drop(key) {
    this.unsaved.delete(key);
    this.damaged.delete(key);
    try {
      localStorage.removeItem('carat.' + key);
    } catch {
      /* no storage */
    }
  },
  /* There may be room now. */
  retry() {
    for (const [key, text] of [...this.unsaved]) if (!this.put(key, text)) break;
    showStorage();
  },
  keys(prefix) {
    const out = new Set([...this.unsaved.keys()].filter((key) => key.startsWith(prefix)));
    try {
      for (let i = 0; i < localStorage.length; i++) {
        const key = localStorage.key(i);
        if (key.startsWith('carat.' + prefix)) out.add(key.slice(6));
      }
    } catch {
      /* no storage */
    }
    return [...out];
  },
};

/* ---- What a record may be ---- */

const MAX_TEXT = 5e6; /* characters; browsers keep about as much in all */
const MAX_FILES = 20;
const isId = (id) => typeof id === 'string' && /^[\w-]{1,64}$/.test(id);
const textOr = (x, max, other) => (typeof x === 'string' ? x.slice(0, max) : other);
const numberOr = (x, other) => (typeof x === 'number' && Number.isFinite(x) ? x : other);
const listOf = (x) => (Array.isArray(x) ? x : []);

/* A message with fields of the right types, or null. */
function cleanMessage(m) {
  if (!m || typeof m !== 'object' || !isId(m.id)) return null;
  if (!['user', 'assistant', 'tool'].includes(m.role)) return null;
  if (m.content !== undefined && m.content !== null && typeof m.content !== 'string') return null;
  const out = {
    id: m.id,
    parent: isId(m.parent) ? m.parent : null,
    at: numberOr(m.at, 0),
    role: m.role,
    content: textOr(m.content, MAX_TEXT, ''),
  };
  for (const key of ['reasoning', 'error', 'finish', 'tool_call_id', 'model'])
    if (typeof m[key] === 'string' && m[key]) out[key] = m[key].slice(0, MAX_TEXT);
  for (const key of ['edited', 'full']) if (m[key] === true) out[key] = true;
  if (m.cut && typeof m.cut === 'object')
    out.cut = {
      from: isId(m.cut.from) ? m.cut.from : '',
      summary: textOr(m.cut.summary, MAX_TEXT, ''),
      lost: Math.max(0, Math.floor(numberOr(m.cut.lost, 0))),
    };
  if (numberOr(m.thought_ms, 0) > 0) out.thought_ms = m.thought_ms;
  const files = listOf(m.files)
    .filter((f) => f && typeof f.name === 'string' && (typeof f.text === 'string' || isId(f.picture)))
    .slice(0, MAX_FILES)
    .map((f) =>
      isId(f.picture) && numberOr(f.seconds, 0) > 0
        ? { name: f.name.slice(0, 200), picture: f.picture, seconds: f.seconds }
        : isId(f.picture)
          ? {
            name: f.name.slice(0, 200),
            picture: f.picture,
            width: numberOr(f.width, 0),
            height: numberOr(f.height, 0),
          }
        : { name: f.name.slice(0, 200), text: f.text.slice(0, MAX_TEXT) },
    );
  if (files.length) out.files = files;
  const calls = listOf(m.calls)
    .filter((c) => c && typeof c === 'object')
    .map((c) => ({
      id: textOr(c.id, 200, ''),
      name: textOr(c.name, 200, ''),
      arguments: textOr(c.arguments, MAX_TEXT, ''),
    }));
  if (calls.length) out.calls = calls;
  if (m.stats && typeof m.stats === 'object') {
    out.stats = { why: textOr(m.stats.why, 200, '') };
    for (const key of ['prompt', 'generated', 'cached', 'thinking', 'rate', 'first'])
      out.stats[key] = Math.max(0, numberOr(m.stats[key], 0));
  }
  return out;
}

/* The record of a conversation, without messages, or null. */
function cleanChat(record) {
  if (!record || typeof record !== 'object' || !isId(record.id)) return null;
  return {
    id: record.id,
    title: textOr(record.title, 200, ''),
    at: numberOr(record.at, 0),
    system: textOr(record.system, MAX_TEXT, ''),
    model: textOr(record.model, 200, ''),
    leaf: isId(record.leaf) ? record.leaf : null,
  };
}

const newId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
const chatOf = (record) => Object.assign({}, record, { messages: new Map(), children: new Map() });
const newChat = () =>
  chatOf({ id: newId(), title: '', at: Date.now(), system: '', model: '', leaf: null });
const recordOf = ({ id, title, at, system, model, leaf }) => ({
  id,
  title,
  at,
  system,
  model,
  leaf,
});

/* ---- The tree ---- */

/* Adds m, or replaces the message of the same id. */
function addMessage(c, m) {
  const old = c.messages.get(m.id);
  if (old) removeFrom(c, old);
  const parent = m.parent || '',
    list = c.children.get(parent) || [];
  list.push(m);
  if (list.length > 1) list.sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
  c.children.set(parent, list);
  c.messages.set(m.id, m);
}

function removeFrom(c, m) {
  const list = c.children.get(m.parent || '');
  c.messages.delete(m.id);
  list.splice(list.indexOf(m), 1);
}

function dropMessage(c, m) {
  removeFrom(c, m);
  if (c.leaf === m.id) c.leaf = m.parent;
  store.drop('msg.' + c.id + '.' + m.id);
}

/* Messages without a way to a root, because a parent is missing or its own descendant, become roots. */
function mendTree(c) {
  const good = new Set(); /* those with a way to a root */
  for (const m of [...c.messages.values()]) {
    const path = new Set();
    let x = m;
    for (; x && !good.has(x) && !path.has(x); x = c.messages.get(x.parent)) path.add(x);
    const last = x && path.has(x) ? x : [...path].at(-1);
    if (!good.has(x) && last && last.parent) {
      removeFrom(c, last);
      last.parent = null;
      addMessage(c, last);
    }
    for (const y of path) good.add(y);
  }
  if (!c.messages.has(c.leaf)) {
    const root = (c.children.get('') || []).at(-1);
    c.leaf = root ? newestLeaf(c, root).id : null;
  }
}

/* The messages from the root to the message leaf. */
function pathTo(c, leaf) {
  const path = [],
    seen = new Set();
  for (let m = c.messages.get(leaf); m && !seen.has(m); m = c.messages.get(m.parent)) {
    seen.add(m);
    path.push(m);
  }
  return path.reverse();
}

const shownPath = (c) => pathTo(c, c.leaf);
const siblings = (c, m) => c.children.get(m.parent || '') || [];

/* Follows the newest child from m to a leaf. */
function newestLeaf(c, m) {
  const seen = new Set();
  for (let next = m; next && !seen.has(next); next = (c.children.get(m.id) || []).at(-1))
    seen.add((m = next));
  return m;
}

/* ---- Reading and writing ---- */

/* The old format: one record per conversation, with a list of messages. */
function listToTree(record) {
  return record.messages.map((old, k) =>
    Object.assign({}, old, {
      id: 'm' + k,
      parent: k ? 'm' + (k - 1) : null,
      at: numberOr(record.at, 0) + k,
    }),
  );
}

/* Converts an old record in the storage. */
function splitRecord(record) {
  const messages = listToTree(record).map(cleanMessage).filter(Boolean);
  store.drop('chat.' + record.id); /* frees its room */
  for (const m of messages) store.write('msg.' + record.id + '.' + m.id, m);
  const leaf = messages.length ? messages.at(-1).id : null;
  store.write('chat.' + record.id, Object.assign(cleanChat(record), { leaf }));
}

/* The record of a conversation, or null. An entry that is no record counts as damaged. */
function readRecord(id) {
  const key = 'chat.' + id,
    value = store.read(key, null);
  if (value && Array.isArray(value.messages) && value.id === id && isId(id)) {
    splitRecord(value);
    return readRecord(id);
  }
  const record = cleanChat(value);
  if (record && record.id === id) return record;
  if (store.raw(key) !== null) store.damaged.set(key, store.raw(key));
  return null;
}

function loadChat(id) {
  const record = readRecord(id);
  if (!record) return null;
  const c = chatOf(record);
  for (const key of store.keys('msg.' + id + '.')) {
    const m = cleanMessage(store.read(key, null));
    if (m && key === 'msg.' + id + '.' + m.id) addMessage(c, m);
    else if (store.raw(key) !== null) store.damaged.set(key, store.raw(key));
  }
  mendTree(c);
  showStorage();
  return c;
}

/* Writes the record of a conversation, and its messages too if another tab has deleted them. */
function saveChat(c) {
  if (!c.messages.size && !c.system) return;
  const gone = store.raw('chat.' + c.id) === null;
  store.write('chat.' + c.id, recordOf(c));
  if (gone)
    for (const m of c.messages.values()) if (!m.writing) store.write('msg.' + c.id + '.' + m.id, m);
  chats.set(c.id, { id: c.id, title: c.title, at: c.at });
}

function saveMessage(c, m) {
  saveChat(c);
  store.write('msg.' + c.id + '.' + m.id, m);
}

function eraseChat(id) {
  chats.delete(id);
  store.drop('chat.' + id);
  const keys = store.keys('msg.' + id + '.');
  forgetPictures(picturesOf(keys.map((key) => store.read(key, null))));
  for (const key of keys) store.drop(key);
  store.retry();
}

/* The entries of the list of conversations. */
function readChats() {
  const all = new Map();
  for (const key of store.keys('chat.')) {
    const record = readRecord(key.slice(5));
    if (record) all.set(record.id, { id: record.id, title: record.title, at: record.at });
  }
  return all;
}
