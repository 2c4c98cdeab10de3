/* models.js - the panel of models: those of the server, which are loaded, unloaded and removed, and those
 * of the hub, which are found and pulled. The server asks the hub; what comes of it is text, never HTML. */

const bytesOf = (n) =>
  n >= 1e9 ? `${(n / 1e9).toFixed(n < 1e10 ? 2 : 1)} GB` : `${Math.max(1, Math.round(n / 1e6))} MB`;
const countOf = (n) =>
  n >= 1e6 ? `${(n / 1e6).toFixed(1)} M` : n >= 1e4 ? `${Math.round(n / 1e3)} k` : String(n);

/* Does something to a model, and shows the sentence of a failure in out. */
async function act(out, method, path, body) {
  out.textContent = '';
  try {
    return await (await send(method, path, body)).json();
  } catch (e) {
    out.textContent = textOr(troubleOf(e), 800, 'The server failed.');
    return null;
  } finally {
    watchModels();
  }
}

const smallButton = (text, label, run) =>
  el('button', { type: 'button', className: 'small', 'aria-label': label, onclick: run }, text);

/* ---- Those of the server ---- */

const rows = new Map(); /* id -> {key, node, update} */
const pulling = new Set(); /* names whose end is still to be told */

/* A model of the list, with fields of the right types. */
function readEntry(m) {
  const status = isObject(m.status) ? m.status : {},
    all = isObject(status.all) ? status.all : {};
  return {
    id: m.id.slice(0, 300),
    state: textOr(status.value, 20, 'loaded'),
    failed: status.failed === true,
    message: textOr(status.message, 600, ''),
    done: Math.max(0, numberOr(all.done, 0)),
    all: Math.max(0, numberOr(all.total, 0)),
    checking: status.checking === true,
    removable: m.can_remove === true,
    pulled: 'all' in status || (status.failed === true && !('size' in m)),
    size: Math.max(0, numberOr(m.size, 0)),
    context: numberOr(m.context_length, 0),
  };
}

function stateText(m) {
  if (m.state === 'downloading' && m.checking) return 'checking what came';
  if (m.state === 'downloading')
    return m.all ? `${bytesOf(m.done)} of ${bytesOf(m.all)}` : 'asking the hub';
  const parts = [m.failed ? 'failed' : m.state === 'unloaded' ? 'not loaded' : m.state];
  if (m.size) parts.push(bytesOf(m.size));
  if (m.context) parts.push(`${m.context.toLocaleString('en')} tokens of context`);
  return parts.join(' · ');
}

/* Removing is asked for twice; the second button says how much goes. */
function removeButton(m, out) {
  const box = el('span', { className: 'ask' });
  const much = m.size ? bytesOf(m.size) : 'it';
  const first = smallButton('Remove', `Remove ${m.id}`, () => {
    const sure = smallButton(`Remove ${much}`, `Remove ${much}: ${m.id}`, () =>
      act(out, 'DELETE', 'models?model=' + encodeURIComponent(m.id)),
    );
    sure.classList.add('bad');
    box.replaceChildren(
      sure,
      smallButton('Keep', `Keep ${m.id}`, () => {
        box.replaceChildren(first);
        first.focus();
      }),
    );
    sure.focus();
  });
  box.append(first);
  return box;
}

function useModel(id) {
  chat.model = settings.model = id;
  store.write('settings', settings);
  saveChat(chat);
  connect();
  $('models-panel').close();
  $('input').focus();
}

function actionsOf(m, out) {
  const post = (text, label, path) => smallButton(text, label, () => act(out, 'POST', path, { model: m.id }));
  if (m.state === 'downloading') return [post('Cancel', `Cancel pulling ${m.id}`, 'models/unload')];
  if (m.pulled)
    return [
      post('Try again', `Try again to pull ${m.id}`, 'models'),
      post('Dismiss', `Dismiss the failure of ${m.id}`, 'models/unload'),
    ];
  const stop = m.state === 'loading' ? 'Stop' : 'Unload',
    all = [smallButton('Use', `Use ${m.id}`, () => useModel(m.id))];
  if (m.state === 'unloaded') all.push(post('Load', `Load ${m.id}`, 'models/load'));
  else all.push(post(stop, `${stop} ${m.id}`, 'models/unload'));
  if (m.removable) all.push(removeButton(m, out));
  return all;
}

function makeRow(m) {
  const state = el('small', {}),
    out = el('output', {}),
    bar = m.state === 'downloading' ? el('progress', { 'aria-label': `Pulling ${m.id}` }) : null,
    node = el(
      'li',
      { className: m.state },
      el('div', { className: 'name' }, el('i', { className: 'dot', 'aria-hidden': 'true' }), m.id),
      state,
      bar,
      el('div', { className: 'acts' }, ...actionsOf(m, out)),
      out,
    );
  return {
    node,
    update(now) {
      state.textContent = [stateText(now), now.message].filter(Boolean).join(': ');
      if (!bar) return;
      if (now.all) bar.value = Math.min(1, now.done / now.all);
      else bar.removeAttribute('value');
    },
  };
}

/* Of a model that is here and whose pull failed there is one row, with what it can do. */
function oneOfEach(list) {
  const each = new Map();
  for (const m of list) if (!each.has(m.id) || !m.failed) each.set(m.id, m);
  return [...each.values()];
}

/* Rows stay as they are while they show the same, so that focus and what was typed stay, too. */
function showRows(list) {
  const seen = new Set(list.map((m) => m.id));
  for (const [id, row] of rows)
    if (!seen.has(id)) {
      row.node.remove();
      rows.delete(id);
    }
  for (const m of list) {
    const key = [m.state, m.failed, m.removable, m.pulled].join(),
      old = rows.get(m.id);
    let row = old;
    if (!old || old.key !== key) {
      row = Object.assign(makeRow(m), { key });
      const focused = old && old.node.contains(document.activeElement);
      rows.set(m.id, row);
      if (old) old.node.replaceWith(row.node);
      else $('model-list').append(row.node);
      if (focused) row.node.querySelector('button').focus();
    }
    row.update(m);
  }
}

function tellEnds(list) {
  const now = new Map(list.map((m) => [m.id, m]));
  for (const name of [...pulling]) {
    const m = now.get(name);
    if (m && m.state === 'downloading') continue;
    pulling.delete(name);
    if (m && m.failed) toast(`${name} was not pulled: ${m.message}`);
    else if (list.some((x) => x.id.toLowerCase().startsWith(name.toLowerCase())))
      toast(`${name} is here now.`);
    connect();
  }
  for (const m of list) if (m.state === 'downloading') pulling.add(m.id);
}

/* Reads the list while the panel is open, and while a model is pulled. */
let watching = 0;
async function watchModels() {
  clearTimeout(watching);
  const open = $('models-panel').open;
  if (!open && !pulling.size) return;
  let moves = false;
  try {
    const answer = await (await send('GET', 'models')).json();
    const list = listOf(answer.data)
      .filter((m) => m && typeof m.id === 'string')
      .slice(0, 500)
      .map(readEntry);
    moves = list.some((m) => m.state === 'loading' || m.state === 'downloading');
    tellEnds(list);
    if (open) showRows(oneOfEach(list));
    $('models-fixed').hidden = answer.role === 'router';
    $('hub').hidden = answer.role !== 'router';
    $('models-trouble').textContent = '';
  } catch (e) {
    $('models-trouble').textContent = textOr(troubleOf(e), 800, '');
  }
  clearTimeout(watching);
  watching = setTimeout(watchModels, moves ? 700 : 4000);
}

/* ---- Those of the hub ---- */

/* What /hub/fit says, in sentences. */
function fitText(fit) {
  const tower = numberOr(fit.tower_bytes, 0),
    needs = numberOr(fit.total_bytes, 0),
    room = numberOr(fit.available_bytes, 0) + numberOr(fit.loaded_bytes, 0),
    size = `${bytesOf(numberOr(fit.bytes, 0))}${tower ? ` and ${bytesOf(tower)} to see pictures` : ''} to pull`;
  if (fit.runs === true)
    return (
      `${size}. Runs here on ${textOr(fit.device, 100, '')}, with a context of ` +
      `${numberOr(fit.context, 0).toLocaleString('en')} tokens. ${textOr(fit.given_up, 300, '')}`
    );
  const why = textOr(fit.problem, 600, 'the server does not say why');
  return needs && needs <= room
    ? `${size}. Runs here once other models are unloaded: ${why}`
    : `${size}. Does not run here: ${why}`;
}

/* The part of a hit that says whether it fits, with a choice of its files. */
function showFit(box, repo, fit) {
  const out = el('output', {}),
    name = textOr(fit.name, 400, repo),
    files = listOf(fit.files)
      .filter((f) => isObject(f) && typeof f.quant === 'string')
      .slice(0, 100);
  const pick = el(
    'select',
    {
      'aria-label': `Weights of ${repo}`,
      onchange: () => look(box, repo, `${repo}:${pick.value}`),
    },
    ...files.map((f) => el('option', { value: f.quant }, `${f.quant}, ${bytesOf(numberOr(f.bytes, 0))}`)),
  );
  pick.value = name.slice(repo.length + 1);
  box.replaceChildren(
    el('p', { className: fit.runs === true ? 'fits' : 'fits not' }, fitText(fit)),
    el(
      'div',
      { className: 'acts' },
      files.length > 1 ? pick : null,
      fit.here === true
        ? el('small', {}, 'It is here.')
        : smallButton('Pull', `Pull ${name}`, async (e) => {
            e.target.disabled = true;
            if (await act(out, 'POST', 'models', { model: name })) {
              pulling.add(name);
              box.replaceChildren(el('small', {}, 'It is in the list above.'));
              watchModels();
            }
            e.target.disabled = false;
          }),
    ),
    out,
  );
}

async function look(box, repo, name) {
  const out = el('output', {});
  box.replaceChildren(el('small', { role: 'status' }, 'Reading the head of its file…'));
  const fit = await act(out, 'GET', 'hub/fit?model=' + encodeURIComponent(name));
  if (isObject(fit)) showFit(box, repo, fit);
  else box.replaceChildren(out);
}

function hitNode(h) {
  const box = el('div', { className: 'fit' });
  return el(
    'li',
    {},
    el('div', { className: 'name' }, h.id),
    el(
      'small',
      {},
      [
        `${countOf(h.downloads)} downloads`,
        h.changed && `changed ${h.changed}`,
        h.gated && 'its licence must be accepted at the hub first',
        h.here && 'here',
      ]
        .filter(Boolean)
        .join(' · '),
    ),
    el(
      'div',
      { className: 'acts' },
      smallButton('Does it fit?', `Does it fit? ${h.id}`, () => look(box, h.id, h.id)),
    ),
    box,
  );
}

$('hub').onsubmit = async (e) => {
  e.preventDefault();
  const words = $('hub-words').value.trim(),
    found = $('hub-found');
  found.textContent = 'Searching…';
  $('hub-list').replaceChildren();
  const answer = await act($('hub-trouble'), 'GET', 'hub/search?q=' + encodeURIComponent(words));
  const hits = listOf(answer && answer.models)
    .filter((h) => isObject(h) && typeof h.id === 'string')
    .slice(0, 50)
    .map((h) => ({
      id: h.id.slice(0, 300),
      downloads: Math.max(0, numberOr(h.downloads, 0)),
      changed: textOr(h.changed, 10, ''),
      gated: h.gated === true,
      here: h.here === true,
    }));
  found.textContent = !answer ? '' : hits.length ? `${hits.length} found` : 'Nothing was found.';
  $('hub-list').replaceChildren(...hits.map(hitNode));
};

$('open-models').onclick = () => {
  $('models-panel').showModal();
  watchModels();
};
$('close-models').onclick = () => $('models-panel').close();
$('models-panel').onclose = () => connect();
