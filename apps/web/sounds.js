/* sounds.js - sounds that go with a message: files, and what the microphone records.
 *
 * A sound is decoded by the browser to one channel of 16,000 samples a second, which is what models
 * hear, and is kept and sent as a WAV file of 16 bits. It is stored where pictures are, and is a file
 * of a message as they are: {name, picture, seconds}. */

const SOUND_RATE = 16000;
const MAX_SOUND_SECONDS = 600; /* the server takes as much */
const SOUND_PIECE_SECONDS = 30; /* models hear so much at a time */

const looksLikeSound = (file) =>
  file.type.startsWith('audio/') || /\.(wav|flac|mp3|ogg|oga|opus|m4a|aac)$/i.test(file.name);

const clock = (seconds) =>
  `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, '0')}`;

/* A WAV file of floats from -1 to 1. */
function wavOf(samples) {
  const at = new DataView(new ArrayBuffer(44 + 2 * samples.length)),
    word = (offset, text) => [...text].forEach((c, k) => at.setUint8(offset + k, c.charCodeAt(0)));
  word(0, 'RIFF');
  at.setUint32(4, 36 + 2 * samples.length, true);
  word(8, 'WAVEfmt ');
  at.setUint32(16, 16, true);
  at.setUint16(20, 1, true); /* integers */
  at.setUint16(22, 1, true); /* of one channel */
  at.setUint32(24, SOUND_RATE, true);
  at.setUint32(28, 2 * SOUND_RATE, true);
  at.setUint16(32, 2, true);
  at.setUint16(34, 16, true);
  word(36, 'data');
  at.setUint32(40, 2 * samples.length, true);
  samples.forEach((x, k) =>
    at.setInt16(44 + 2 * k, Math.max(-32768, Math.min(32767, Math.round(x * 32768))), true),
  );
  return new Blob([at.buffer], { type: 'audio/wav' });
}

/* The mean of all channels. */
function mixed(buffer) {
  const out = buffer.getChannelData(0).slice(),
    n = buffer.numberOfChannels;
  for (let k = 1; k < n; k++) buffer.getChannelData(k).forEach((x, i) => (out[i] += x));
  return n > 1 ? out.map((x) => x / n) : out;
}

/* {uri, seconds} of a file. Throws a sentence. */
async function soundOfFile(file) {
  if (file.size > MAX_PICTURE_FILE) throw new Error('is larger than 100 MB');
  let buffer;
  try {
    /* It decodes to its own rate. */
    const own = new OfflineAudioContext(1, 1, SOUND_RATE);
    buffer = await own.decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new Error('is no sound that this browser reads');
  }
  const seconds = buffer.length / SOUND_RATE;
  if (seconds > MAX_SOUND_SECONDS)
    throw new Error(`is longer than ${MAX_SOUND_SECONDS / 60} minutes`);
  return { uri: await bytesAsUri(wavOf(mixed(buffer))), seconds };
}

/* Adds a sound to a draft's files. Throws a sentence. */
async function attachSound(c, own, file, name) {
  if (hearsOf(c) === false) throw new Error('is a sound, and this model does not hear');
  if (own.filter((f) => f.picture).length >= MAX_PICTURES)
    throw new Error(`is one too many; a message takes ${MAX_PICTURES} pictures and sounds`);
  const { uri, seconds } = await soundOfFile(file),
    id = newId();
  if (!isPicture(uri)) throw new Error('is too long or too short');
  await pictures.put(id, uri);
  own.push({ name, picture: id, seconds });
}

/* A chip with the length. remove: as of chipNode. */
function soundNode(file, remove) {
  const pieces = file.seconds > SOUND_PIECE_SECONDS ? `, in pieces of ${SOUND_PIECE_SECONDS} s` : '';
  return el(
    'span',
    { className: 'chip' },
    icon('voice'),
    el('span', { className: 'name', title: file.name }, file.name),
    el('small', {}, clock(file.seconds) + pieces),
    remove &&
      el(
        'button',
        { type: 'button', 'aria-label': 'Remove ' + file.name, onclick: remove },
        icon('shut'),
      ),
  );
}

/* ---- The microphone ---- */

const canRecord = () =>
  Boolean(navigator.mediaDevices && window.MediaRecorder && window.OfflineAudioContext);

const recording = {
  recorder: null,
  starts: false /* the browser asks the user */,
  timer: 0,
  since: 0,
  kept: true,

  show() {
    const button = $('mic'),
      on = Boolean(this.recorder),
      seconds = (performance.now() - this.since) / 1000;
    button.classList.toggle('on', on);
    button.setAttribute('aria-label', on ? 'Stop recording' : 'Record speech');
    button.replaceChildren(icon(on ? 'stop' : 'voice'), on ? el('small', {}, clock(seconds)) : '');
    if (on && seconds >= MAX_SOUND_SECONDS) this.stop(true);
  },
  /* Records for c until stop. */
  async start(c) {
    if (this.recorder || this.starts) return;
    let stream;
    this.starts = true;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    } catch (e) {
      return toast(
        e.name === 'NotAllowedError'
          ? 'The browser does not let this page use the microphone.'
          : 'There is no microphone that this browser can use.',
      );
    } finally {
      this.starts = false;
    }
    const parts = [],
      recorder = new MediaRecorder(stream);
    recorder.ondataavailable = (e) => parts.push(e.data);
    recorder.onstop = () => {
      for (const track of stream.getTracks()) track.stop();
      clearInterval(this.timer);
      this.recorder = null;
      this.show();
      if (this.kept) this.take(c, new Blob(parts, { type: recorder.mimeType }));
    };
    this.kept = true;
    this.recorder = recorder;
    this.since = performance.now();
    this.timer = setInterval(() => this.show(), 250);
    recorder.start();
    this.show();
  },
  /* kept: what was recorded goes with the message. */
  stop(kept) {
    this.kept = kept;
    if (this.recorder && this.recorder.state !== 'inactive') this.recorder.stop();
  },
  async take(c, blob) {
    const own = draftOf(c).files,
      name = `Speech at ${new Date().toLocaleTimeString()}`;
    try {
      await attachSound(c, own, blob, name);
    } catch (e) {
      toast(`${name} ${e.message}.`);
    }
    if (chat === c) showDraft();
  },
};
