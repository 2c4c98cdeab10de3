/* transfer.js - conversations to a file and back. A file from outside is hostile: everything in it
 * passes cleanChat, cleanMessage and mendTree. */

const MAX_IMPORT = 500e6; /* bytes of a file, which may hold pictures */

async function exportChats() {
  const conversations = [...chats.keys()]
    .map(findChat)
    .filter(Boolean)
    .map((c) => Object.assign(recordOf(c), { messages: [...c.messages.values()] }));
  const all = { carat: 1, conversations };
  const ids = new Set(conversations.flatMap((c) => picturesOf(c.messages)));
  if (ids.size) all.pictures = {};
  for (const id of ids) {
    const uri = await pictures.get(id);
    if (uri) all.pictures[id] = uri;
  }
  if (store.damaged.size) all.damaged = Object.fromEntries(store.damaged);
  saveFile('carat-conversations.json', 'application/json', JSON.stringify(all, null, 1));
}

function saveFile(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error('it is not JSON');
  }
}

/* Adds the pictures of a file that are not here. */
async function importPictures(all) {
  const given = all && typeof all.pictures === 'object' ? all.pictures : {};
  for (const [id, uri] of Object.entries(given || {}))
    if (isId(id) && isPicture(uri) && !(await pictures.get(id))) await pictures.put(id, uri);
}

/* The conversations of a file: {id, ...} with messages as a list. Throws a sentence. */
function conversationsOf(all) {
  const list = Array.isArray(all) ? all : all && all.conversations;
  if (!Array.isArray(list)) throw new Error('it has no list of conversations');
  return list;
}

/* Adds a conversation, or the messages that one of the same id lacks. Returns the number of new
 * messages; -1: it is no conversation, -2: there is no room, and nothing was added. */
function importChat(record) {
  const clean = cleanChat(record);
  if (!clean || !Array.isArray(record.messages)) return -1;
  const old = findChat(clean.id),
    c = chatOf(clean);
  if (old && isBusy(old)) return -1;
  const isTree = record.messages.some((m) => m && m.id !== undefined),
    list = isTree ? record.messages : listToTree(record);
  for (const m of list.map(cleanMessage))
    if (m && !(old && old.messages.has(m.id))) addMessage(c, m);
  const fresh = [...c.messages.values()];
  if (old) for (const m of old.messages.values()) addMessage(c, m);
  if (!c.messages.size && !c.system) return -1;
  if (old) Object.assign(c, recordOf(old));
  mendTree(c);
  const written = [];
  for (const m of fresh) {
    const key = 'msg.' + c.id + '.' + m.id;
    if (store.put(key, JSON.stringify(m))) written.push(key);
    else break;
  }
  if (
    written.length < fresh.length ||
    (!old && !store.put('chat.' + c.id, JSON.stringify(recordOf(c))))
  ) {
    for (const key of written) store.drop(key);
    return -2;
  }
  chats.set(c.id, { id: c.id, title: c.title, at: c.at });
  if (old && old === chat) {
    for (const m of fresh) addMessage(old, m);
    mendTree(old);
    showChat(true);
  }
  return fresh.length;
}

async function importFile(file) {
  try {
    if (file.size > MAX_IMPORT) throw new Error('it is larger than 500 MB');
    const all = parsed(await file.text()),
      list = conversationsOf(all);
    await importPictures(all);
    let added = 0,
      bad = 0,
      full = false;
    for (const record of list) {
      const n = importChat(record);
      if (n === -2) full = true;
      if (n > 0) added++;
      if (n === -1) bad++;
      if (full) break;
    }
    const parts = [added === 1 ? 'Imported 1 conversation.' : `Imported ${added} conversations.`];
    if (!added && !bad && !full) parts[0] = 'Everything in this file is here already.';
    if (bad) parts.push(`${bad} of its entries cannot be read.`);
    if (full) parts.push('The browser has no room for the rest.');
    toast(parts.join(' '));
  } catch (e) {
    toast(`${shortName(file.name)} cannot be imported: ${e.message}.`);
  }
  showList();
}
