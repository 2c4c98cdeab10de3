/* page.js - the state of the page, its message box, keys, changes by other tabs, and the start.
 *
 * Each conversation can have one answer or summary in flight. Buttons act on the one shown. */

let chat = null; /* the one shown */
/* id of a conversation -> what is in flight of it: {chat, abort, message}. message: the answer that is
 * written; null while room is made in a full context. */
const flights = new Map();
/* id of a conversation -> {text, files}, not sent */
const drafts = new Map();

const isBusy = (c) => flights.has(c.id);

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

/* ---- The message box ---- */

function draftOf(c) {
  if (!drafts.has(c.id)) drafts.set(c.id, { text: '', files: [] });
  return drafts.get(c.id);
}

function showDraft() {
  const draft = draftOf(chat);
  $('input').value = draft.text;
  $('chips').replaceChildren(
    ...draft.files.map((f) =>
      chipNode(f, () => {
        draft.files.splice(draft.files.indexOf(f), 1);
        showDraft();
        $('input').focus();
      }),
    ),
  );
  $('chips').hidden = !draft.files.length;
  fitInput();
}

const hasDraft = () => $('input').value.trim() || draftOf(chat).files.length;

function showSend() {
  const busy = isBusy(chat),
    send = $('send');
  send.replaceChildren(icon(busy ? 'stop' : 'up'));
  send.setAttribute('aria-label', busy ? 'Stop' : 'Send');
  send.disabled = !busy && !hasDraft();
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
  if (!hasDraft()) return;
  const text = $('input').value,
    files = draftOf(chat).files;
  drafts.delete(chat.id);
  showDraft();
  ask(chat, chat.leaf, text, files);
};
$('input').oninput = () => {
  draftOf(chat).text = $('input').value;
  fitInput();
};
$('input').onkeydown = (e) => {
  if (e.key !== 'Enter' || e.shiftKey || e.isComposing) return;
  e.preventDefault();
  if (!isBusy(chat)) $('form').requestSubmit();
};

/* ---- Files: chosen, pasted, dropped ---- */

$('attach').onclick = () => $('files').click();
$('files').onchange = async () => {
  await attach([...$('files').files]);
  $('files').value = '';
  $('input').focus();
};
$('camera').onclick = () => $('shot').click();
$('shot').onchange = async () => {
  await attach([...$('shot').files]);
  $('shot').value = '';
  $('input').focus();
};
$('mic').onclick = () => (recording.recorder ? recording.stop(true) : recording.start(chat));
$('input').onpaste = (e) => {
  if (!e.clipboardData || !e.clipboardData.files.length) return;
  e.preventDefault();
  attach([...e.clipboardData.files]);
};
const hasFiles = (e) => e.dataTransfer && [...e.dataTransfer.types].includes('Files');
let depth = 0; /* of elements that a dragged file is over */
addEventListener('dragenter', (e) => {
  if (hasFiles(e) && ++depth) document.body.classList.add('drop');
});
addEventListener('dragleave', (e) => {
  if (hasFiles(e) && --depth <= 0) endDrop();
});
addEventListener('dragover', (e) => {
  if (hasFiles(e)) e.preventDefault();
});
addEventListener('drop', (e) => {
  if (!hasFiles(e)) return;
  e.preventDefault(); /* the browser would leave the page and open the file */
  endDrop();
  attach([...e.dataTransfer.files]);
});
function endDrop() {
  depth = 0;
  document.body.classList.remove('drop');
}

/* ---- Keys and the side ---- */

const dialogOpen = () => !!document.querySelector('dialog[open]');
document.addEventListener('keydown', (e) => {
  if (dialogOpen()) return;
  if (e.key === 'Escape') {
    if (document.body.classList.contains('side')) closeSide();
    else if (recording.recorder) recording.stop(false);
    else if (isBusy(chat)) flights.get(chat.id).abort.abort();
  }
  if (e.key === '/' && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) {
    e.preventDefault();
    $('input').focus();
  }
  if (e.key.toLowerCase() === 'k' && (e.ctrlKey || e.metaKey) && !e.shiftKey && !e.altKey) {
    e.preventDefault();
    openSide();
    $('find').focus();
  }
});
$('new').onclick = startChat;

function openSide() {
  document.body.classList.add('side');
  $('open-side').setAttribute('aria-expanded', 'true');
}
function closeSide() {
  document.body.classList.remove('side');
  $('open-side').setAttribute('aria-expanded', 'false');
}
$('open-side').onclick = () => {
  openSide();
  $('new').focus();
};
$('scrim').onclick = closeSide;

/* ---- Changes by other tabs ---- */

addEventListener('storage', (e) => {
  const [, kind, id, message] = (e.key || '').split('.');
  if (kind === 'settings' && !$('set').open) {
    settings = readSettings();
    showTheme();
    showSigns();
    showModel();
  } else if (kind === 'chat') {
    const record = cleanChat(store.read('chat.' + id, null));
    if (record) chats.set(id, { id, title: record.title, at: record.at });
    else chats.delete(id);
    if (record && chat.id === id) {
      chat.title = record.title;
      if (!$('set').open) chat.system = record.system;
    }
    showList();
  } else if (kind === 'msg') {
    const c = flights.has(id) ? flights.get(id).chat : chat.id === id ? chat : null;
    const m = c && cleanMessage(store.read('msg.' + id + '.' + message, null));
    if (m) takeMessage(c, m);
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
    if (m && (m.content || m.reasoning)) saveMessage(c, Object.assign({}, m, { finish: 'cancelled' }));
});

/* ---- Start ---- */

for (const idea of [
  'What is carat?',
  'Explain what a mutex is, with a short example in C.',
  'Plan a three-day walk in the mountains for two.',
])
  $('ideas').append(
    el('li', {}, el('button', { type: 'button', onclick: () => ask(chat, chat.leaf, idea) }, idea)),
  );
const chats = readChats(); /* id -> {id, title, at} */
let settings = readSettings();
showTheme();
chat = loadChat(String(store.read('last', ''))) || newChat();
showList();
showDraft();
showChat();
showStorage();
connect().then(resumeFlights);
$('input').focus();
