/* panels.js - parameters, the model, signs of what is on, the theme, about, and what the storage says. */

/* ---- Settings: they are for all conversations ---- */

function readSettings() {
  const out = {},
    old = store.read('settings', {});
  if (!old || typeof old !== 'object') return out;
  for (const [key, value] of Object.entries(old))
    if (/^[a-z_]{1,30}$/.test(key) && typeof value === 'string') out[key] = value;
  return out;
}

/* ---- The theme ---- */

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

const isObject = (v) => !!v && typeof v === 'object' && !Array.isArray(v);

/* A sentence beside a field; '': its value is good. */
function showFault(field, bad) {
  $('params').querySelector(`output[data-for=${field.name}]`).textContent = bad;
  field.classList.toggle('wrong', !!bad);
  field.setAttribute('aria-invalid', String(!!bad));
  return !bad;
}

function checkJson(field, wants) {
  let bad = '';
  try {
    if (field.value.trim() && !wants(JSON.parse(field.value)))
      bad = field.name === 'tools' ? 'This must be an array.' : 'This must be an object.';
  } catch (e) {
    bad = `This is not JSON: ${e.message}.`;
  }
  return showFault(field, bad);
}

/* What is wrong with the text of a number; '': nothing. */
function faultOf([, kind, least, most], text) {
  const v = Number(text),
    whole = kind === 'WHOLE',
    range = most >= 2147483647 ? `${least} or more` : `${least} to ${most}`;
  if (text.trim() === '' || (v >= least && v <= most && (!whole || Number.isInteger(v)))) return '';
  return `This must be a ${whole ? 'whole ' : ''}number, ${range}.`;
}
function checkNumber(field, row) {
  return showFault(field, faultOf(row, field.value));
}

/* The first five are those that people change; the others are one click away. */
SAMPLING.forEach(([name, kind, , , help], i) =>
  $(i < 5 ? 'sampling' : 'more-sampling').append(
    el(
      'label',
      {},
      name + ' ',
      el('small', {}, help),
      el('input', { name, inputmode: kind === 'WHOLE' ? 'numeric' : 'decimal', placeholder: 'default' }),
      el('output', { 'data-for': name }),
    ),
  ),
);
/* The model's own numbers, where no other is typed. */
async function showDefaults() {
  const query = new URLSearchParams({ model: modelOf(chat), autoload: 'false' });
  let own = {};
  try {
    const r = await fetch('props?' + query, { headers: headers(false) });
    const usual = r.ok && (await r.json()).default_generation_settings;
    own = (usual && usual.params) || usual || {};
  } catch {
    /* the server is away, or no carat: the fields say "default" */
  }
  for (const [name] of SAMPLING)
    $('params').elements[name].placeholder = Number.isFinite(own[name])
      ? `default ${+own[name].toPrecision(6)}`
      : 'default';
}

$('params').oninput = (e) => {
  const f = e.target;
  if (f.name === 'system') {
    chat.system = f.value;
    showSigns();
    return;
  }
  if (f.name === 'schema' && !checkJson(f, isObject)) return;
  if (f.name === 'tools' && !checkJson(f, Array.isArray)) return;
  const row = NUMBERS.find((n) => n[0] === f.name);
  if (row && !checkNumber(f, row)) return;
  settings[f.name] = f.value.trim();
  store.write('settings', settings);
  showSigns();
};
/* name: the field that gets the focus. */
function openParameters(name) {
  const form = $('params');
  for (const f of form.elements)
    if (f.name) f.value = f.name === 'system' ? chat.system : settings[f.name] || '';
  checkJson(form.elements.schema, isObject);
  checkJson(form.elements.tools, Array.isArray);
  for (const row of NUMBERS) checkNumber(form.elements[row[0]], row);
  showDefaults();
  $('set').showModal();
  if (name) form.elements[name].focus();
}
$('open-set').onclick = () => openParameters();
$('close-set').onclick = () => $('set').close();
$('set').onclose = () => {
  saveChat(chat);
  connect();
  showSigns();
};
for (const id of ['set', 'about', 'models-panel'])
  $(id).onclick = (e) => {
    if (e.target === $(id)) $(id).close();
  };
$('open-about').onclick = () => $('about').showModal();
$('close-about').onclick = () => $('about').close();

/* ---- Signs: what shapes the answers of this conversation, above the message box ---- */

function nTools() {
  try {
    return JSON.parse(settings.tools).length;
  } catch {
    return 0;
  }
}

function showSigns() {
  const signs = [],
    add = (name, text, title) =>
      signs.push(
        el(
          'button',
          {
            type: 'button',
            className: 'sign',
            title,
            'aria-label': `${text} is on: change it under Parameters`,
            onclick: () => openParameters(name),
          },
          el('i', { 'aria-hidden': 'true' }),
          text,
        ),
      );
  if (chat.system) add('system', 'System message', chat.system.slice(0, 400));
  if (settings.schema) add('schema', 'JSON schema', 'Answers are JSON that matches the schema');
  if (settings.tools) {
    const n = nTools();
    add('tools', n === 1 ? '1 tool' : `${n} tools`, 'The model may call these functions');
  }
  $('signs').replaceChildren(...signs);
  $('signs').hidden = !signs.length;
}

/* ---- The models of the server ---- */

/* {id, context, title, state, sees, hears}; context 0, sees and hears undefined: known once it is
 * loaded */
let models = [];

const modelNamed = (id) => models.find((m) => m.id === id);
/* The model that answers in c: the conversation's, the one chosen last, or the first. */
const modelOf = (c) =>
  (modelNamed(c.model) || modelNamed(settings.model) || models[0] || { id: 'carat' }).id;
/* Whether the model of c reads pictures. */
const seesOf = (c) => (modelNamed(modelOf(c)) || {}).sees;
/* Whether it hears. */
const hearsOf = (c) => (modelNamed(modelOf(c)) || {}).hears;
const contextOf = (c) => (modelNamed(modelOf(c)) || { context: 0 }).context;

function showModel() {
  const pick = $('pick'),
    id = modelOf(chat);
  if (!models.length) return;
  const same =
    pick.options.length === models.length && models.every((m, k) => m.id === pick.options[k].value);
  if (!same) pick.replaceChildren(...models.map((m) => el('option', { value: m.id })));
  models.forEach((m, k) => {
    pick.options[k].textContent = m.state === 'loaded' ? m.id : `${m.id} (${m.state})`;
  });
  pick.value = id;
  pick.hidden = models.length < 2;
  $('model-name').hidden = models.length > 1;
  $('model-name').textContent = id;
  $('model').title = modelNamed(id).title;
  $('mic').hidden = !modelNamed(id).hears || !canRecord();
  $('camera').hidden = !modelNamed(id).sees || !matchMedia('(pointer: coarse)').matches;
}
$('pick').onchange = () => {
  chat.model = settings.model = $('pick').value;
  store.write('settings', settings);
  saveChat(chat);
  showModel();
  showContext();
};

function readModel(m) {
  const meta = isObject(m.meta) ? m.meta : {},
    status = isObject(m.status) ? m.status : {},
    takes = isObject(m.architecture) ? m.architecture.input_modalities : null,
    failure = textOr(status.message, 400, ''),
    billions = numberOr(meta.n_params, 0) / 1e9;
  return {
    id: String(m.id).slice(0, 200),
    context: numberOr(m.context_length, numberOr(meta.n_ctx, 0)),
    title: failure
      ? `${m.id} could not be loaded: ${failure}`
      : billions
        ? `${m.id}, ${billions.toPrecision(2)} billion parameters, ${textOr(meta.ftype, 40, '')}`
        : String(m.id),
    state: failure ? 'failed' : textOr(status.value, 20, 'loaded'),
    sees: Array.isArray(takes) ? takes.includes('image') : undefined,
    hears: Array.isArray(takes) ? takes.includes('audio') : undefined,
  };
}

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
    const list = listOf((await r.json()).data).filter((m) => m && typeof m.id === 'string');
    models = list.slice(0, 500).map(readModel);
    if (!models.length) throw new Error('no model');
    box.className = 'up';
    await loadTools();
    showModel();
    showContext();
  } catch (e) {
    box.className = 'down';
    $('pick').hidden = true;
    $('model-name').hidden = false;
    $('model-name').textContent = e instanceof TypeError ? 'server not reachable' : e.message;
    again = setTimeout(connect, 3000);
  }
}

/* ---- What the storage says ---- */

/* The browser stores nothing at all for this page. */
function isPrivate() {
  try {
    if (localStorage.length) return false;
    localStorage.setItem('carat.probe', '1');
    localStorage.removeItem('carat.probe');
    return false;
  } catch {
    return true;
  }
}

/* A sentence while something is not stored or cannot be read. */
function showStorage() {
  const n = store.unsaved.size,
    lines = [];
  if (n)
    lines.push(
      isPrivate()
        ? 'This browser keeps nothing for this page: conversations last until this tab is closed.'
        : `The browser has no room left: ${n === 1 ? 'one entry is' : n + ' entries are'} kept only ` +
            'until this tab is closed. Export or delete conversations.',
    );
  if (store.damaged.size)
    lines.push(
      `${store.damaged.size === 1 ? 'One stored entry' : store.damaged.size + ' stored entries'} ` +
        'cannot be read. Nothing of it was changed; an export has it as it is.',
    );
  const text = lines.join(' '),
    box = $('storage');
  if (text === box.said) return;
  box.said = text;
  box.hidden = !text;
  box.replaceChildren(
    el('span', {}, text),
    el('button', { type: 'button', onclick: exportChats }, 'Export'),
    el('button', { type: 'button', onclick: () => (box.hidden = true) }, 'Hide'),
  );
}
addEventListener('beforeunload', (e) => {
  if ([...store.unsaved.keys()].some((key) => key.startsWith('msg.'))) e.preventDefault();
});

$('export').onclick = exportChats;
$('import').onclick = () => $('import-file').click();
$('import-file').onchange = async () => {
  for (const file of [...$('import-file').files]) await importFile(file);
  $('import-file').value = '';
};
