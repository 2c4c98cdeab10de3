/* full.js - a conversation that has outgrown its context.
 *
 * Less is sent then than is on the screen. A message with a `cut` says so, for itself and all
 * messages below it:
 *
 *     cut: {from: ID, summary: TEXT, lost: N}
 *
 * Of its path the messages before `from` are not sent; an empty `from` stands for the message below
 * the cut. The model reads the summary in their place, if there is one. `lost` is the number of turns
 * that the summary lacks. The last cut of a path counts. No message is changed or deleted, so versions,
 * searches and exports have them all. */

const ROOM_SHARE = 4; /* one part in so many of the context is kept free for the answer */
const ASK_SUMMARY =
  'Summarise our conversation so far, so that it can go on from your summary alone: facts, names, ' +
  'numbers, decisions, and what is still open. Write only the summary.';
const BEGIN_SUMMARY = 'This is a summary of our conversation so far:\n\n';
const AFTER_SUMMARY = 'Understood. Let us go on from there.';

const inTurns = (n) => (n === 1 ? '1 turn' : `${n} turns`);
const theTurns = (n) => (n === 1 ? 'The turn above is' : `The ${n} turns above are`);
const oldestTurns = (n) => (n === 1 ? 'The oldest turn is' : `The oldest ${n} turns are`);

/* ---- What is sent of a path ---- */

/* The cut that counts on a path: {at, first, summary, lost}. at is its message, first the index of the
 * first message that is sent. Null: all of the path is sent. */
function cutOf(path) {
  for (let k = path.length - 1; k >= 0; k--) {
    const { cut, role } = path[k];
    if (!cut) continue;
    const open = !cut.from && cut.summary && role === 'assistant',
      first = open ? k + 1 : path.findIndex((m) => m.id === cut.from);
    if (first > 0 && (open || first <= k))
      return { at: path[k], first, summary: cut.summary, lost: cut.lost };
  }
  return null;
}

/* Answers that hold only an error are not sent. */
const hasText = (m) => m.role !== 'assistant' || m.content || m.calls;

/* The messages that the model reads. */
function sentOf(path) {
  const cut = cutOf(path),
    list = path.slice(cut ? cut.first : 0).filter(hasText);
  if (cut && cut.summary)
    list.unshift(
      { role: 'user', content: BEGIN_SUMMARY + cut.summary },
      { role: 'assistant', content: AFTER_SUMMARY },
    );
  return list;
}

/* Where turns begin: at the first message, and at each question that follows an answer. */
function turnStarts(list) {
  const starts = [];
  list.forEach((m, k) => {
    if (!k || (m.role === 'user' && list[k - 1].role !== 'user')) starts.push(k);
  });
  return starts;
}

const countTurns = (path) => turnStarts(path.filter(hasText)).length;

/* The cut of a message for another version of it, whose id is given. */
const copiedCut = (m, id) =>
  m.cut && Object.assign({}, m.cut, m.cut.from === m.id ? { from: id } : {});

/* ---- Making room ---- */

/* An answer -> the state of the offer below it: {doing, note, s, text, from, lost}. doing: what is in
 * flight; note: why it failed; s: the message that takes the summary's stream; text, from, lost: the
 * summary when it is complete, and the cut it would make. */
const offers = new WeakMap();

/* The id of the message that an offer of the answer m cuts at: the question that waits, or m. */
const cutPlace = (m) => (m.full ? m.parent : m.id);

/* Tokens of a request with these messages, and the context's. */
async function countTokens(c, list, signal) {
  const response = await post('tokenize', await requestBody(c, list), signal),
    { count, max_model_len } = await response.json();
  if (!(count >= 0) || !(max_model_len > 0)) throw new Error('The server does not count tokens.');
  return { count, max: max_model_len };
}

/* The fewest turns, from least to most, without which the messages leave room for an answer. If none
 * do, it is `most` as long as the prompt is shorter than the context. Throws a sentence. */
async function turnsToDrop(c, list, least, most, signal) {
  const starts = turnStarts(list),
    sizes = new Map();
  const without = async (n) => {
    if (!sizes.has(n)) sizes.set(n, await countTokens(c, list.slice(starts[n]), signal));
    return sizes.get(n);
  };
  let lo = least,
    hi = most;
  while (lo < hi) {
    const mid = (lo + hi) >> 1,
      { count, max } = await without(mid);
    if (count <= max - max / ROOM_SHARE) hi = mid;
    else lo = mid + 1;
  }
  const { count, max } = await without(lo);
  if (count < max) return lo;
  throw new Error(
    `Without the older turns the prompt still has ${count.toLocaleString()} tokens, and the context ` +
      `holds ${max.toLocaleString()}. Shorten the last message or the system message, or start the ` +
      'server with a longer context: carat serve -c N.',
  );
}

/* Runs a job of the offer below the answer m, as the one thing in flight of c. The offer shows the
 * sentence that the job throws. Returns whether the job was done. */
async function runJob(c, m, offer, job) {
  if (isBusy(c)) return false;
  offer.doing = 'Counting tokens';
  offers.set(m, offer);
  const signal = takeOff(c, null);
  let ok = false;
  try {
    await job(signal);
    ok = true;
  } catch (e) {
    if (!signal.aborted) offer.note = troubleOf(e);
  }
  offer.doing = '';
  settle(c);
  return ok;
}

/* Sets the cut that the offer below the answer m stands for. A question that waits is asked again. */
function setCut(c, m, cut) {
  const place = c.messages.get(cutPlace(m));
  if (!place) return;
  place.cut = cut;
  saveMessage(c, place);
  offers.delete(m);
  if (m.full) regenerate(c, m);
  else if (chat === c) showChat(true);
  if (chat === c) $('input').focus();
}

async function dropTurns(c, m) {
  const path = pathTo(c, cutPlace(m)),
    list = sentOf(path),
    starts = turnStarts(list);
  let from = null;
  const ok = await runJob(c, m, {}, async (signal) => {
    from = list[starts[await turnsToDrop(c, list, 1, starts.length - 1, signal)]].id;
  });
  if (ok) setCut(c, m, { from, summary: '', lost: 0 });
}

/* Requests a summary of all turns but the one that waits, and shows it as a text to edit. */
async function summarise(c, m) {
  const path = pathTo(c, cutPlace(m)),
    list = sentOf(path),
    starts = turnStarts(list),
    waiting = m.full ? list[starts.at(-1)] : null,
    offer = {};
  if (waiting) list.length = starts.pop();
  const asked = list.concat({ role: 'user', content: ASK_SUMMARY });
  const ok = await runJob(c, m, offer, async (signal) => {
    const n = await turnsToDrop(c, asked, 0, starts.length - 1, signal);
    const body = await requestBody(c, asked.slice(starts[n]));
    for (const key of ['max_tokens', 'stop', 'response_format']) delete body[key];
    if (body.tools) body.tool_choice = 'none'; /* with the tools, the conversation's keys serve */
    const s = (offer.s = writing({ role: 'assistant', content: '' }));
    offer.doing = 'Writing the summary';
    await fillAnswer(c, s, body, newStream(), signal, () => showMessage(c, m));
    if (!s.content.trim()) throw new Error('The model wrote no summary.');
    offer.text = s.content.trim();
    offer.from = waiting ? waiting.id : '';
    offer.lost = lostTurns(path, n ? list[starts[n]] : null);
  });
  if (offer.s) offer.s.writing = false; /* a drawing that waits would take the focus */
  const box = ok && chat === c && views.get(m).querySelector('.full textarea');
  if (box) box.focus();
}

/* Turns of a path that its summary lacks. first: the first message that the summary is made of; null:
 * the summary is made of all that was sent. */
function lostTurns(path, first) {
  const cut = cutOf(path);
  if (first) return countTurns(path.slice(0, path.indexOf(first)));
  return !cut ? 0 : cut.summary ? cut.lost : countTurns(path.slice(0, cut.first));
}

/* Sends everything again: the path has no cut any more. */
function removeCuts(c) {
  if (isBusy(c)) return toast('Stop the answer first.');
  for (const m of shownPath(c))
    if (m.cut) {
      delete m.cut;
      saveMessage(c, m);
    }
  showChat(true);
}

/* ---- On the screen ---- */

const choice = (text, onclick, title) =>
  el('button', { type: 'button', onclick, title: title || '' }, text);

/* What can be done about a full context, below the answer m. */
function offerNode(c, m) {
  const offer = offers.get(m) || {};
  const node = el('section', { className: 'full', 'aria-label': 'The context is full' });
  if (m.error) node.append(el('p', { className: 'fail', role: 'alert' }, m.error));
  else
    node.append(
      el(
        'p',
        { className: 'note' },
        m.full ? 'The answer was cut off: the context is full.' : 'The context is almost full.',
      ),
    );
  if (offer.note) node.append(el('p', { className: 'fail', role: 'alert' }, offer.note));
  if (offer.doing) node.append(...jobNodes(offer));
  else if (offer.text !== undefined) node.append(...summaryNodes(c, m, offer));
  else node.append(...choiceNodes(c, m));
  return node;
}

/* The conversation stays as it is. */
function endOffer(c, m) {
  offers.delete(m);
  showMessage(c, m);
  showContext();
  $('input').focus();
}

function jobNodes(offer) {
  const text = offer.s && offer.s.content;
  return [
    el('p', { className: 'wait' }, el('b'), offer.doing + '\u2026'),
    ...(text ? [el('div', { className: 'summary' }, text)] : []),
  ];
}

function choiceNodes(c, m) {
  const n = turnStarts(sentOf(pathTo(c, cutPlace(m)))).length,
    rest = m.full ? n - 1 : n; /* turns that a summary can stand for */
  const choices = [];
  if (n > 1)
    choices.push(
      choice(
        'Leave out the oldest turns',
        () => dropTurns(c, m),
        'Sends as many of the newest turns as leave room for an answer',
      ),
    );
  if (rest > 0)
    choices.push(
      choice(
        'Begin anew with a summary',
        () => summarise(c, m),
        'The model writes a summary, which you may edit or discard',
      ),
    );
  if (m.error) choices.push(choice('Try again', () => regenerate(c, m)));
  if (!m.full) choices.push(choice('Not now', () => endOffer(c, m)));
  return [
    ...(n > 1 || !m.full
      ? []
      : [
          el(
            'p',
            { className: 'note' },
            'There is no older turn to leave out. Shorten the message, or start the server with a ' +
              'longer context: carat serve -c N.',
          ),
        ]),
    el('div', { className: 'choices' }, ...choices),
  ];
}

/* The summary that was written, to be edited, taken or discarded. */
function summaryNodes(c, m, offer) {
  const box = el('textarea', {
    className: 'edit',
    value: offer.text,
    'aria-label': 'Summary of the conversation',
    oninput: () => (offer.text = box.value),
  });
  return [
    el(
      'p',
      { className: 'note' },
      'The model will read this summary in place of the conversation so far. You may edit it.',
      offer.lost > 0 && ` ${oldestTurns(offer.lost)} not in it: there was no room.`,
      offer.s.finish === 'length' && ' It was cut off, because the context is full.',
    ),
    box,
    el(
      'div',
      { className: 'choices' },
      choice('Go on with this summary', () => {
        const summary = box.value.trim();
        if (isBusy(c)) return toast('Stop the answer first.');
        if (summary) setCut(c, m, { from: offer.from, summary, lost: offer.lost });
      }),
      choice('Discard it', () => endOffer(c, m)),
    ),
  ];
}

/* Stands between the messages that are not sent and those that are. */
function cutNode(c, path, cut) {
  const node = el('section', { className: 'cut', 'aria-label': 'Not sent to the model' }),
    above = theTurns(countTurns(path.slice(0, cut.first)));
  node.append(
    el(
      'p',
      {},
      `${above} not sent to the model.`,
      cut.summary && ' It reads this summary instead:',
    ),
  );
  if (cut.summary) node.append(el('div', { className: 'summary' }, cut.summary));
  if (cut.summary && cut.lost)
    node.append(el('p', {}, `${oldestTurns(cut.lost)} not in the summary: there was no room.`));
  node.append(
    el(
      'div',
      { className: 'acts' },
      cut.summary &&
        ghost('Edit', () => editSummary(c, node, cut), { 'aria-label': 'Edit the summary' }),
      ghost('Send everything again', () => removeCuts(c)),
    ),
  );
  return node;
}

/* Puts a text box in the place of a summary. */
function editSummary(c, node, cut) {
  if (isBusy(c)) return toast('Stop the answer first.');
  const box = el('textarea', {
    className: 'edit',
    value: cut.summary,
    'aria-label': 'Edit the summary',
  });
  const back = () => {
    showChat(true);
    $('input').focus();
  };
  const keep = () => {
    const summary = box.value.trim();
    if (isBusy(c)) return toast('Stop the answer first.');
    if (!summary) return;
    cut.at.cut = Object.assign({}, cut.at.cut, { summary });
    saveMessage(c, cut.at);
    back();
  };
  box.onkeydown = (e) => {
    if (e.key === 'Escape') {
      e.stopPropagation();
      back();
    }
    if (e.key === 'Enter' && !e.isComposing && (e.ctrlKey || e.metaKey)) {
      e.preventDefault();
      keep();
    }
  };
  node.replaceChildren(
    box,
    el('div', { className: 'acts' }, ghost('Cancel', back), ghost('Keep', keep)),
  );
  box.style.height = Math.min(box.scrollHeight + 4, innerHeight / 2) + 'px';
  box.focus();
}
