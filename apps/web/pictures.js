/* pictures.js - pictures that go with a message. Sounds (sounds.js) are stored and counted as they are.
 *
 * A picture is a data: address. A large one is scaled here, before it is stored and sent: the most
 * tokens that a model makes of a picture show MAX_PIXELS. Pictures are in IndexedDB, which has room
 * for them, by an id that the files of messages name: {name, picture, width, height}. Where the
 * browser stores nothing, they last as long as the tab. */

const MAX_PICTURES = 16; /* of a message; the server takes as many of a request */
const MAX_PICTURE_FILE = 100e6; /* bytes, before it is scaled */
const MAX_PICTURE = 8e6; /* characters of a data: address */
const MAX_SOUND = 26e6; /* of ten minutes */
const MAX_PIXELS = 1120 * 48 * 48;
const SENT_AS_IT_IS = 2e6; /* bytes of a file that needs no scaling */
const PICTURE_TYPES = ['image/png', 'image/jpeg', 'image/webp'];

const isSound = (uri) => uri.startsWith('data:audio/wav;');

/* Or a sound. */
const isPicture = (uri) =>
  typeof uri === 'string' &&
  uri.length <= (isSound(uri) ? MAX_SOUND : MAX_PICTURE) &&
  /^data:(image\/(png|jpeg|webp)|audio\/wav);base64,[A-Za-z0-9+/]+={0,2}$/.test(uri);

const pictures = {
  memory: new Map() /* id -> data: address of what is not stored */,
  base: null /* a promise of the database, or of null */,

  open() {
    if (!this.base)
      this.base = new Promise((done) => {
        try {
          const r = indexedDB.open('carat.pictures', 1);
          r.onupgradeneeded = () => r.result.createObjectStore('pictures');
          r.onsuccess = () => done(r.result);
          r.onerror = r.onblocked = () => done(null);
        } catch {
          done(null);
        }
      });
    return this.base;
  },
  /* What run(store) asks for; undefined: it failed. */
  async ask(mode, run) {
    const base = await this.open();
    if (!base) return undefined;
    return new Promise((done) => {
      try {
        const t = base.transaction('pictures', mode),
          r = run(t.objectStore('pictures'));
        t.oncomplete = () => done(r.result === undefined ? null : r.result);
        t.onerror = t.onabort = () => done(undefined);
      } catch {
        done(undefined);
      }
    });
  },
  async put(id, uri) {
    this.memory.set(id, uri);
    if ((await this.ask('readwrite', (s) => s.put(uri, id))) !== undefined) this.memory.delete(id);
  },
  /* A data: address, or null. */
  async get(id) {
    const uri = this.memory.get(id) || (await this.ask('readonly', (s) => s.get(id)));
    return isPicture(uri) ? uri : null;
  },
  drop(id) {
    this.memory.delete(id);
    this.ask('readwrite', (s) => s.delete(id));
  },
};

/* The ids of the pictures that messages name. */
const picturesOf = (messages) =>
  messages.flatMap((m) => listOf(m && m.files).map((f) => f && f.picture)).filter(isId);

/* All that any stored message names. */
const namedPictures = () =>
  new Set(picturesOf(store.keys('msg.').map((key) => store.read(key, null))));

/* Deletes those of a conversation that was deleted, unless that was undone or another has them. */
function forgetPictures(ids) {
  if (!ids.length) return;
  setTimeout(() => {
    const named = namedPictures();
    for (const id of ids) if (!named.has(id)) pictures.drop(id);
  }, 10000);
}

const looksLikePicture = (file) =>
  file.type.startsWith('image/') || /\.(png|jpe?g|webp|gif|bmp|avif|heic)$/i.test(file.name);

const bytesAsUri = (file) =>
  new Promise((done, fail) => {
    const r = new FileReader();
    r.onload = () => done(r.result);
    r.onerror = () => fail(new Error('cannot be read'));
    r.readAsDataURL(file);
  });

/* The size at which a picture is sent. */
function sizeToSend(width, height) {
  const s = Math.min(1, Math.sqrt(MAX_PIXELS / (width * height)), 16384 / Math.max(width, height));
  return [Math.max(1, Math.floor(width * s)), Math.max(1, Math.floor(height * s))];
}

/* {uri, width, height} of a file. Throws a sentence. */
async function pictureOfFile(file) {
  if (file.size > MAX_PICTURE_FILE) throw new Error('is larger than 100 MB');
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { imageOrientation: 'from-image' });
  } catch {
    throw new Error('is no picture that this browser reads');
  }
  const [width, height] = sizeToSend(bitmap.width, bitmap.height),
    same = width === bitmap.width && height === bitmap.height;
  let uri = '';
  if (same && PICTURE_TYPES.includes(file.type) && file.size <= SENT_AS_IT_IS)
    uri = await bytesAsUri(file);
  if (!isPicture(uri)) {
    const canvas = el('canvas', { width, height }),
      c = canvas.getContext('2d');
    c.fillStyle = '#fff'; /* behind what is transparent */
    c.fillRect(0, 0, width, height);
    c.imageSmoothingQuality = 'high';
    c.drawImage(bitmap, 0, 0, width, height);
    /* Screenshots have sharp letters, which JPEG blurs. */
    if (file.type === 'image/png') uri = canvas.toDataURL('image/png');
    if (!uri || uri.length > SENT_AS_IT_IS) uri = canvas.toDataURL('image/jpeg', 0.92);
  }
  bitmap.close();
  if (!isPicture(uri)) throw new Error('cannot be made smaller by this browser');
  return { uri, width, height };
}

/* Adds a picture to a draft's files. Throws a sentence. */
async function attachPicture(c, own, file, name) {
  if (seesOf(c) === false) throw new Error('is a picture, and this model reads text alone');
  if (own.filter((f) => f.picture).length >= MAX_PICTURES)
    throw new Error(`is one too many; a message takes ${MAX_PICTURES} pictures`);
  const { uri, width, height } = await pictureOfFile(file),
    id = newId();
  await pictures.put(id, uri);
  own.push({ name, picture: id, width, height });
}

/* A thumbnail; a click shows it large. remove: as of chipNode. */
function thumbNode(file, remove) {
  const img = el('img', { alt: file.name, title: `${file.name}, ${file.width} x ${file.height}` });
  pictures.get(file.picture).then((uri) => {
    if (uri) img.src = uri;
    else node.replaceChildren(el('span', { className: 'name' }, `${file.name} is not here`));
  });
  const node = el(
    'span',
    { className: 'thumb' },
    el(
      'button',
      {
        type: 'button',
        'aria-label': 'Show ' + file.name,
        onclick: () => node.classList.toggle('large'),
      },
      img,
    ),
    remove &&
      el(
        'button',
        {
          type: 'button',
          className: 'remove',
          'aria-label': 'Remove ' + file.name,
          onclick: remove,
        },
        icon('shut'),
      ),
  );
  return node;
}

const partOf = (uri) =>
  isSound(uri)
    ? { type: 'input_audio', input_audio: { data: uri.slice(uri.indexOf(',') + 1), format: 'wav' } }
    : { type: 'image_url', image_url: { url: uri } };

/* The parts of a message's pictures, for a request. old.n: pictures from here on that are beyond
 * what the server takes of a request; they are named only. */
async function pictureParts(c, m, old) {
  const parts = [];
  for (const f of (m.files || []).filter((f) => f.picture)) {
    const takes = f.seconds ? hearsOf(c) : seesOf(c),
      uri = old.n-- > 0 || takes === false ? '' : await pictures.get(f.picture),
      name = `${f.seconds ? 'Sound' : 'Picture'} ${f.name}`,
      why = uri === '' ? `you cannot ${f.seconds ? 'hear' : 'see'}` : 'is no longer here';
    parts.push(uri ? partOf(uri) : { type: 'text', text: `(${name}, which ${why}.)\n` });
  }
  return parts;
}
