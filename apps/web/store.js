/* store.js - conversations in localStorage, which all tabs of the browser share.
 *
 *     carat.chat.ID          {id, title, at, system, leaf}
 *
 *     carat.msg.ID.MESSAGE   {id, parent, at, role, content, ...}
 *
 * A conversation is a tree: editing a message or regenerating an answer adds a sibling. The page
 * shows the path from a root to `leaf`. Each message has its own key, which only the tab that
 * made the message writes. So no tab overwrites a message of another; storage events tell the
 * other tabs. */

const store = {
  read(key, fallback) {
    try {
      const text = localStorage.getItem('carat.' + key);
      return text === null ? fallback : JSON.parse(text);
    } catch {
      return fallback;
    }
  },
  write(key, value) {
    try {
      localStorage.setItem('carat.' + key, JSON.stringify(value));
      return true;
    } catch {
      toast('This browser has no room left: delete or export conversations.');
      return false;
    }
  },
  drop(key) {
    try {
      localStorage.removeItem('carat.' + key);
    } catch {
      /* no storage */
    }
  },
  keys(prefix) {
    const out = [];
    try {
      for (let i = 0; i < localStorage.length; i++) {
        const key = localStorage.key(i);
        if (key.startsWith('carat.' + prefix)) out.push(key.slice(6));
      }
    } catch {
      /* no storage */
    }
    return out;
  },
};

const newId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
const newChat = () => ({
  id: newId(),
  title: '',
  at: Date.now(),
  system: '',
  leaf: null,
  messages: new Map(),
  children: new Map(),
});

/* ---- The tree ---- */

/* Adds m, or replaces the message of the same id. */
function addMessage(c, m) {
  const parent = m.parent || '',
    list = c.children.get(parent) || [];
  const at = list.findIndex((x) => x.id === m.id);
  if (at >= 0) list[at] = m;
  else list.push(m);
  list.sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
  c.children.set(parent, list);
  c.messages.set(m.id, m);
}

function dropMessage(c, m) {
  const list = c.children.get(m.parent || '');
  c.messages.delete(m.id);
  list.splice(list.indexOf(m), 1);
  if (c.leaf === m.id) c.leaf = m.parent;
  store.drop('msg.' + c.id + '.' + m.id);
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

const isMessage = (m) =>
  m && typeof m === 'object' && typeof m.id === 'string' && typeof m.role === 'string';

/* The old format: one record per conversation, with a list of messages. */
function listToTree(record) {
  return record.messages.map((old, k) =>
    Object.assign({}, old, { id: 'm' + k, parent: k ? 'm' + (k - 1) : null, at: record.at + k }),
  );
}

/* Converts an old record in the storage. If there is no room, changes nothing and returns false. */
function splitRecord(record) {
  const messages = listToTree(record),
    written = [];
  store.drop('chat.' + record.id); /* frees its room */
  for (const m of messages) {
    const key = 'msg.' + record.id + '.' + m.id;
    if (store.write(key, m)) written.push(key);
    else break;
  }
  const { id, title, at, system } = record,
    leaf = messages.length ? messages.at(-1).id : null;
  if (
    written.length === messages.length &&
    store.write('chat.' + id, { id, title, at, system, leaf })
  )
    return true;
  for (const key of written) store.drop(key);
  store.write('chat.' + id, record);
  return false;
}

function loadChat(id) {
  let record = store.read('chat.' + id, null),
    list = [];
  if (record && Array.isArray(record.messages)) {
    if (!splitRecord(record)) list = listToTree(record);
    record = Object.assign({}, record, {
      messages: undefined,
      leaf: 'm' + (record.messages.length - 1),
    });
  }
  if (!record) return null;
  const c = newChat();
  for (const key of ['title', 'at', 'system', 'leaf']) if (record[key]) c[key] = record[key];
  c.id = id;
  for (const m of list) addMessage(c, m);
  for (const key of store.keys('msg.' + id + '.')) {
    const m = store.read(key, null);
    if (isMessage(m)) addMessage(c, m);
  }
  if (!c.messages.has(c.leaf)) {
    const root = (c.children.get('') || []).at(-1);
    c.leaf = root ? newestLeaf(c, root).id : null;
  }
  return c;
}

/* Writes the record of a conversation, and its messages too if another tab has deleted them. */
function saveChat(c) {
  if (!c.messages.size && !c.system) return;
  const old = store.read('chat.' + c.id, null),
    gone = old === null;
  if (old && Array.isArray(old.messages) && !splitRecord(old)) return;
  store.write('chat.' + c.id, {
    id: c.id,
    title: c.title,
    at: c.at,
    system: c.system,
    leaf: c.leaf,
  });
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
  for (const key of store.keys('msg.' + id + '.')) store.drop(key);
}

/* The entries of the list of conversations. */
function readChats() {
  const all = new Map();
  for (const key of store.keys('chat.')) {
    const record = store.read(key, null);
    if (!record || typeof record.id !== 'string') continue;
    if (Array.isArray(record.messages)) splitRecord(record);
    all.set(record.id, {
      id: record.id,
      title: String(record.title || ''),
      at: Number(record.at) || 0,
    });
  }
  store.drop('index');
  return all;
}

const chats = readChats(); /* id -> {id, title, at} */
