/* chats.js - the list of conversations, and the search in them. */

/* The conversation's object: the one in flight, the one shown, or a new one from the storage. */
function findChat(id) {
  return flights.has(id) ? flights.get(id).chat : chat && chat.id === id ? chat : loadChat(id);
}

function enterChat(c) {
  chat = c;
  showDraft();
  showChat();
  showList();
  closeSide();
}

function openChat(id) {
  if (chat && chat.id === id) return closeSide();
  const c = findChat(id);
  if (!c) return toast('This conversation cannot be read, or is no longer there.');
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
  else $('new').focus(); /* the button that had the focus goes */
  showList();
  toast(`Deleted ${(c && c.title) || 'the conversation'}.`, 'Undo', () => {
    if (c) {
      saveChat(c);
      openChat(id);
    }
  });
}

/* ---- The menu of a conversation, and its name ---- */

let renaming = null; /* the id of the conversation whose name is being typed */

/* Opens the menu below its button. */
function openMenu(button, items) {
  const menu = $('menu'),
    at = button.getBoundingClientRect();
  menu.opener = button;
  menu.replaceChildren(
    ...items.map(([text, name, run]) =>
      el(
        'button',
        {
          type: 'button',
          role: 'menuitem',
          tabIndex: -1,
          onclick: () => {
            menu.hidePopover();
            run();
          },
        },
        icon(name),
        text,
      ),
    ),
  );
  menu.setAttribute('aria-label', button.getAttribute('aria-label'));
  menu.showPopover();
  const room = innerHeight - at.bottom - menu.offsetHeight;
  menu.style.left = Math.max(4, Math.min(at.right - menu.offsetWidth, innerWidth - menu.offsetWidth - 4)) + 'px';
  menu.style.top = (room > 4 ? at.bottom : at.top - menu.offsetHeight) + 'px';
  button.setAttribute('aria-expanded', 'true');
  menu.firstChild.focus();
}
$('menu').ontoggle = (e) => {
  const menu = $('menu');
  if (e.newState === 'open' || !menu.opener) return;
  menu.opener.setAttribute('aria-expanded', 'false');
  if (menu.contains(document.activeElement) || document.activeElement === document.body)
    menu.opener.focus();
};
$('menu').onkeydown = (e) => {
  const all = [...$('menu').children],
    at = all.indexOf(document.activeElement),
    to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[e.key];
  if (e.key === 'Escape' || e.key === 'Tab') $('menu').hidePopover();
  else if (to === undefined) return;
  else all.at(to % all.length).focus();
  e.stopPropagation(); /* Escape stops an answer, too */
  e.preventDefault();
};

/* The field for the name of a conversation, in its place in the list. */
function nameField(id, title) {
  const end = (keep) => {
    const text = field.value.trim().slice(0, 120),
      c = renaming === id && findChat(id);
    if (!c) return;
    renaming = null;
    if (keep && text && text !== c.title) {
      c.title = text;
      saveChat(c);
      if (chat.id === id) $('title').textContent = text;
    }
    showList();
    const go = $('list').querySelector(`[data-id="${CSS.escape(id)}"]`);
    if (go && document.activeElement === document.body) go.focus();
  };
  const field = el('input', {
    className: 'name',
    value: title,
    maxLength: 120,
    autocomplete: 'off',
    'aria-label': 'Name of the conversation',
    onblur: () => end(true),
    onkeydown: (e) => {
      if (e.key !== 'Enter' && e.key !== 'Escape') return;
      e.preventDefault();
      e.stopPropagation();
      end(e.key === 'Enter');
    },
  });
  return field;
}

function rename(id) {
  renaming = id;
  showList();
  const field = $('list').querySelector('.name');
  if (!field) return void (renaming = null);
  field.focus();
  field.select();
}

function showList() {
  if (search.words.length || (renaming && $('list').querySelector('.name'))) return;
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
        x.id === renaming && nameField(x.id, title),
        el(
          'button',
          {
            type: 'button',
            className: 'go',
            hidden: x.id === renaming,
            'data-id': x.id,
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
            className: 'more',
            hidden: x.id === renaming,
            'aria-label': 'Actions for ' + title,
            'aria-haspopup': 'menu',
            'aria-expanded': 'false',
            onclick: (e) =>
              openMenu(e.currentTarget, [
                ['Rename', 'pen', () => rename(x.id)],
                ['Delete', 'bin', () => removeChat(x.id)],
              ]),
          },
          icon('dots'),
        ),
      ),
    );
  }
  $('list').replaceChildren(...items);
}

/* ---- Search: all words, in titles, messages and names of files ---- */

const MAX_FOUND = 50;
const SLICE_MS = 12; /* of work before the page may do something else */
const search = { words: [], n: 0 };

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\\/-]/g, '\\$&');

/* The text around the first place of a word, as nodes; null: it is not there. */
function snippet(text, word) {
  const m = word.exec(text);
  if (!m) return null;
  const from = Math.max(0, m.index - 30),
    to = m.index + m[0].length;
  return [
    (from ? '\u2026' : '') + text.slice(from, m.index).replace(/\s+/g, ' '),
    el('mark', {}, m[0]),
    text.slice(to, to + 60).replace(/\s+/g, ' '),
  ];
}

/* Where the words are in a conversation: {message, nodes}, or null. */
function findIn(id, words) {
  const missing = new Set(words),
    record = chats.get(id);
  let found = null;
  for (const w of words) if (w.test(record.title)) missing.delete(w);
  const c = findChat(id);
  if (!c) return null;
  for (const m of c.messages.values()) {
    const text = m.content + (m.files || []).map((f) => '\n' + f.name).join('');
    for (const w of words) {
      if (!missing.has(w) && found) continue;
      const nodes = snippet(text, w);
      if (!nodes) continue;
      missing.delete(w);
      found = found || { message: m.id, nodes };
    }
    if (!missing.size && found) break;
  }
  return missing.size ? null : found || { message: null, nodes: [] };
}

function foundNode(id, found) {
  const title = chats.get(id).title || 'Untitled';
  return el(
    'li',
    { className: chat.id === id ? 'on' : '' },
    el(
      'button',
      { type: 'button', className: 'go found', onclick: () => openFound(id, found.message) },
      title,
      el('small', {}, ...found.nodes),
    ),
  );
}

/* Opens a conversation with a message in sight. */
function openFound(id, message) {
  openChat(id);
  const m = chat.id === id && chat.messages.get(message);
  if (!m) return;
  if (!shownPath(chat).includes(m) && !isBusy(chat)) {
    chat.leaf = newestLeaf(chat, m).id;
    showChat();
  }
  const node = views.get(m);
  if (!node || !node.isConnected) return;
  following = false;
  setTimeout(() => node.scrollIntoView({ block: 'start' }), 60);
  node.classList.add('lit');
  setTimeout(() => node.classList.remove('lit'), 2500);
}

async function runSearch() {
  const n = ++search.n,
    words = $('find').value.trim().split(/\s+/).filter(Boolean).slice(0, 8);
  search.words = words.map((w) => new RegExp(escaped(w.slice(0, 100)), 'iu'));
  $('found').textContent = '';
  renaming = null;
  if (!words.length) return showList();
  const items = [],
    ids = [...chats.values()].sort((a, b) => b.at - a.at).map((x) => x.id);
  let start = performance.now();
  for (const id of ids) {
    const found = chats.has(id) && findIn(id, search.words);
    if (found) items.push(foundNode(id, found));
    if (items.length === MAX_FOUND) break;
    if (performance.now() - start < SLICE_MS) continue;
    await new Promise((go) => setTimeout(go, 0));
    if (n !== search.n) return; /* another search has begun */
    start = performance.now();
  }
  $('list').replaceChildren(...items);
  $('found').textContent = items.length
    ? items.length === MAX_FOUND
      ? `The newest ${MAX_FOUND}`
      : `${items.length} found`
    : 'Nothing found';
}

$('find').oninput = () => {
  clearTimeout(search.timer);
  search.timer = setTimeout(runSearch, 120);
};
$('find').onkeydown = (e) => {
  if (e.key === 'Escape' && $('find').value) {
    e.stopPropagation();
    $('find').value = '';
    runSearch();
  }
  const first = e.key === 'ArrowDown' && $('list').querySelector('.go');
  if (first) {
    e.preventDefault();
    first.focus();
  }
};
$('list').onkeydown = (e) => {
  if (e.key === 'F2' && document.activeElement.dataset.id) rename(document.activeElement.dataset.id);
  const step = e.key === 'ArrowDown' ? 1 : e.key === 'ArrowUp' ? -1 : 0,
    all = [...$('list').querySelectorAll('.go')],
    at = all.indexOf(document.activeElement);
  if (!step || at < 0) return;
  e.preventDefault();
  (all[at + step] || $('find')).focus();
};
