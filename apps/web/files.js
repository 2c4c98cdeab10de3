/* files.js - files that go with a message. Texts are chips, and the model reads them in front of the
 * message's text; pictures.js has pictures, sounds.js sounds. */

const MAX_FILE_BYTES = 1e6;
const MAX_ATTACHED = 1e6; /* characters of all files of a message */

/* A name without marks that change how it or its surroundings are shown. */
const shortName = (name) =>
  name
    .replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, '')
    .trim()
    .slice(0, 120) || 'file';

/* The text of a file. Throws a sentence if it has none. */
async function textOfFile(file) {
  if (file.size > MAX_FILE_BYTES) throw new Error('is larger than 1 MB');
  let bytes;
  try {
    bytes = new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Error('cannot be read; it may be a folder');
  }
  const mark = bytes.length > 1 ? bytes[0] * 256 + bytes[1] : 0;
  let text;
  try {
    const code = mark === 0xfffe ? 'utf-16le' : mark === 0xfeff ? 'utf-16be' : 'utf-8';
    text = new TextDecoder(code, { fatal: true }).decode(bytes);
  } catch {
    throw new Error('is not text');
  }
  if (text.includes('\0')) throw new Error('is not text');
  if (!text.trim()) throw new Error('is empty');
  return text.replace(/\r\n?/g, '\n');
}

/* Adds files to the message that is being written. */
async function attach(list) {
  const c = chat,
    troubles = [];
  for (const file of list) {
    const name = shortName(file.name),
      own = draftOf(c).files;
    try {
      if (own.length >= MAX_FILES) throw new Error(`is one too many; a message takes ${MAX_FILES}`);
      if (looksLikePicture(file)) {
        await attachPicture(c, own, file, name);
        continue;
      }
      if (looksLikeSound(file)) {
        await attachSound(c, own, file, name);
        continue;
      }
      const text = await textOfFile(file);
      const n = own.reduce((sum, f) => sum + (f.text || '').length, text.length);
      if (n > MAX_ATTACHED) throw new Error('makes the message longer than a million characters');
      own.push({ name, text });
    } catch (e) {
      troubles.push(`${name} ${e.message}.`);
    }
  }
  if (chat === c) showDraft();
  if (troubles.length)
    toast(
      troubles.slice(0, 3).join(' ') + (troubles.length > 3 ? ` ${troubles.length - 3} more.` : ''),
    );
}

const sizeOf = (text) =>
  text.length < 1000
    ? `${text.length} characters`
    : `${(text.length / 1000).toFixed(text.length < 10000 ? 1 : 0)} thousand characters`;

/* A chip. remove: a function, or null for a message that was sent. */
function chipNode(file, remove) {
  if (file.picture) return file.seconds ? soundNode(file, remove) : thumbNode(file, remove);
  if (remove)
    return el(
      'span',
      { className: 'chip' },
      icon('page'),
      el('span', { className: 'name', title: `${file.name}, ${sizeOf(file.text)}` }, file.name),
      el(
        'button',
        { type: 'button', 'aria-label': 'Remove ' + file.name, onclick: remove },
        icon('shut'),
      ),
    );
  const body = el('pre', { tabIndex: 0 });
  const node = el(
    'details',
    { className: 'chip' },
    el(
      'summary',
      {},
      icon('page'),
      el('span', { className: 'name' }, file.name),
      el('small', {}, sizeOf(file.text)),
    ),
    body,
  );
  node.ontoggle = () => {
    if (node.open && !body.firstChild) new GrowingText(body).show(file.text);
  };
  return node;
}

/* What the model reads of a message: its texts, then its own. */
function textWithFiles(m) {
  const parts = (m.files || []).filter((f) => !f.picture).map((f) => {
    let n = 3;
    for (const run of f.text.matchAll(/`{3,}/g)) n = Math.max(n, run[0].length + 1);
    const fence = '`'.repeat(n);
    return `File ${f.name}:\n${fence}\n${f.text.replace(/\n$/, '')}\n${fence}\n`;
  });
  return parts.concat(m.content).join('\n');
}

/* The content of a message in a request: its pictures and sounds, then its text. */
async function contentWithFiles(c, m, old) {
  const parts = await pictureParts(c, m, old),
    text = textWithFiles(m);
  if (!parts.length) return text;
  return text ? parts.concat({ type: 'text', text }) : parts;
}
